"""Bytes between Workers: persistent links and their single-frame twin over plain HTTP."""
