"""Alembic's home: the environment and the revisions that make the Tracker's tables."""
