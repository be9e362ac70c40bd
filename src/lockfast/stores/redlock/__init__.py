"""Redlock: a majority of independent Redis servers, seen as one store."""
