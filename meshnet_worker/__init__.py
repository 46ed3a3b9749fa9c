"""Lends one device to the Mesh: loads a Shard of real layers and runs it."""
