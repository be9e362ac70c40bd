"""The SQLite store: one file that all processes of a host share, without a server."""
