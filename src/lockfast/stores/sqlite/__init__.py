"""The embedded store: one SQLite file that all processes of one host share. No server."""
