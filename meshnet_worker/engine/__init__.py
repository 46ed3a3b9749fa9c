"""The engine: the only process that imports torch; it owns one device and runs Batches on it."""
