"""Host side: several processes that serve as one. Rank 0 decides; the others run the same programs in the same order.

Read next: group.py (who is in it), link.py (one connection), leader.py and follower.py (what passes over it).
"""
