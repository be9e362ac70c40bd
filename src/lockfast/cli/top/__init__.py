"""`lockfast top`: a live view of a store's locks, on a full screen.

`model` keeps what was observed and derives rates and losses from it; `poller` inspects the store on
a thread of its own and at a bounded rate; `keys` is the state of the user interface; `view` renders
both as lines; `terminal` draws them and restores the terminal. Only `poller` and `terminal` do I/O.

The screen is drawn with a dozen escape sequences that every terminal since the VT100 knows, and
termios. A full-screen library (textual, rich, curses) was rejected: it brings windows, layouts and
events, of which a list and a few keys need none, and curses needs a terminal description that the
remote end of an ssh session often lacks.
"""
