"""Weights on this machine: found in a folder, or fetched Layer by Layer and kept."""
