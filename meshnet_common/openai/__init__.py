"""The one OpenAI schema of Head Worker, Tracker and Gateway: bytes and values, no IO."""
