"""One file per verb of the command: what can be said (`arguments`), and what is done then (`do`).

`main` knows their names and loads only the one that was asked for, so that `lockfast run` does not
wait for the others. A new verb is a file here and a line in `main.VERBS`.
"""
