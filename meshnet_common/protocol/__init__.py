"""Bytes and values of the protocol: frames, tracker messages and route tickets; no IO here."""
