"""A simulator of the draft policy: python -m experiments.draft_policy. Read __main__.py, scenarios.py, simulate.py."""
