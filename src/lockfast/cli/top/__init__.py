"""`lockfast top`: a live view of a store's locks, on a full screen.

`model` knows what was seen, and what follows from two looks; `looker` looks, on a thread of its own
and at a pace that the store can bear; `keys` knows what the operator is about; `view` makes lines
of both; `terminal` puts them on the screen and gives the screen back. Only `looker` and `terminal`
do I/O.

It is drawn with a dozen escape sequences that every terminal since the VT100 knows, and termios. A
library for full screens (textual, rich, curses) was not taken: it would bring windows, layouts and
events, of which a list and four keys need none, and curses asks for a description of the terminal
that the other end of an ssh often does not have.
"""
