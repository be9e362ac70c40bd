"""What both faces share: everything of clients, locks and holds that neither blocks nor awaits.

`sync` and `aio` add the verbs, one line each. They do not know each other.
"""
