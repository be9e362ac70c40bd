"""Real servers for tests and benchmarks, started per run on loopback and stopped by pid."""
