"""Host side: prompts whose state is kept, so that a later one that begins alike starts behind them.

A kept state is what a lane holds after its first rows: the leaves that are a lane's own, copied into a slot, and pages,
shared by reference count. It lies on the devices; from there it may go to the host's memory, and to files. Nothing here
changes a token. Read next: reuse.py, then device.py (entries.py, radix.py) and tiers.py (host.py, disk.py).
"""
