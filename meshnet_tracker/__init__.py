"""The control plane: coverage map, planner, directives and the public endpoint; no weights."""
