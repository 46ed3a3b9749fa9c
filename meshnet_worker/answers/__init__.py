"""Answers of a Head Worker: what they say, and how they are told to clients and Trackers."""
