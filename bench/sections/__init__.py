"""The sections of the benchmark, a module each: ``measure(quick) -> list[Line]``.

A module whose name begins with an underscore is a tool of the others, not a section.
"""
