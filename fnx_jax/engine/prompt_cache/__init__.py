"""Host side: prompts whose state the device keeps, so that a later one that begins alike starts behind them.

A kept state is what a lane holds after its first rows: the leaves that are a lane's own, copied into a slot, and pages,
shared by reference count. Nothing here changes a token. Read next: reuse.py, then entries.py and radix.py.
"""
