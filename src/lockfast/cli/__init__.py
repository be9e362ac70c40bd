"""The command: run holds a lock while a command runs, demo shows it all, bench measures."""
