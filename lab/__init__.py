"""The laboratory: conformance suite, simulator, small Redis, fault proxy, servers, planted bugs.

In the repository, not in the wheel. Nothing in `lockfast` imports it.
"""
