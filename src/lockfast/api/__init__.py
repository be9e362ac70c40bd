"""Shared parts of the sync and async APIs: everything that neither blocks nor awaits.

`lockfast.aio` adds the operations, and `lockfast.sync` is generated from it by
``tools/generate_sync.py``. They do not import each other.
"""
