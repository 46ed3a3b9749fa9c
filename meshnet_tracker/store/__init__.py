"""The only room that knows SQL: the Tracker's memory on SQLite or PostgreSQL."""
