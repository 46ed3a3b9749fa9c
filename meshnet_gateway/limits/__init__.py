"""Decides how much may be in flight, where, and who goes next; pure, `now` in seconds."""
