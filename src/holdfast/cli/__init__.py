"""The command: `holdfast run` holds a lock while a command runs, `holdfast demo` shows it all."""
