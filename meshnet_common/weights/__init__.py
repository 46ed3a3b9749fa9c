"""A checkpoint's files as all see them: safetensors headers, which tensor is where, digests."""
