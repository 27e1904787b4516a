"""Host side: a server of several processes. leading.py is rank 0, following.py every other; facts.py they compare."""
