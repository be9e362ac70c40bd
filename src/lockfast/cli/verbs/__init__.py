"""Verbs of the command, one module each: `add_arguments` declares the options, `execute` runs it.

`main` imports only the requested verb, so that `lockfast run` starts fast. A new verb is a module
here and a line in `main.VERBS`.
"""
