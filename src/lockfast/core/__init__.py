"""What lockfast decides, as coroutines that await nothing but their ports."""
