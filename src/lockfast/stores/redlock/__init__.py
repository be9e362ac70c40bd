"""Redlock: independent Redis servers, of which a majority acts as one store."""
