"""Shared parts of the sync and async APIs: everything that neither blocks nor awaits.

`lockfast.sync` and `lockfast.aio` add the operations, one line each, and do not import each other.
"""
