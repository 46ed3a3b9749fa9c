"""The Tracker's HTTP endpoints: each reads a request, asks the store, writes an answer."""
