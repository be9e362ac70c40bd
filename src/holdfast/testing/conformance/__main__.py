"""A client in a process of its own, under the control of a conformance case."""

from holdfast.testing.conformance.children import main

main()
