"""A client in a process of its own, under the control of a conformance case."""

from lab.conformance.children import main

main()
