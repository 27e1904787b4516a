"""Servers with and without drafts, asked by several streams at once. `__main__.py` is the command; read that first."""
