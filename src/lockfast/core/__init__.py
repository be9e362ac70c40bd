"""The decisions of lockfast, as coroutines that await nothing but their ports."""
