"""What holdfast decides, as coroutines that await nothing but their ports."""
