"""Finds out how many requests an Endpoint takes at once before they only wait for each other."""
