"""Entry point of a child process: one client, controlled by a conformance case."""

from lab.conformance.children import main

main()
