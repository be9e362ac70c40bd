"""For tests, yours and ours: a clock of your own, faults, the simulator, the conformance suite.

Nothing in holdfast itself imports this room.
"""
