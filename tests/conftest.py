"""Fixtures for all tests."""

pytest_plugins = ["holdfast.testing.fixtures"]
