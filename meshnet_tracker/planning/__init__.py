"""Pure decisions over a Mesh Snapshot: who serves which Layers, and which Route a Session takes."""
