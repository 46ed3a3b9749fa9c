"""Shared edges of the three programs: HTTP helpers, serving, logs, clock and the way out."""
