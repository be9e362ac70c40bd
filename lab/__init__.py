"""The laboratory: conformance suite, simulator, MiniRedis, fault proxy, servers, planted bugs.

In the repository, not in the wheel. Nothing in `lockfast` imports it.
"""
