"""A thin OpenAI-compatible proxy in front of meshes and plain OpenAI-compatible servers."""
