"""The `lockfast` command: run, inspect, break, watch, check and measure locks from a shell."""
