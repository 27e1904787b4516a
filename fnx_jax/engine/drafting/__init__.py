"""Host side: how many drafts a lane makes and tests, so that drafts never cost anything.

Read: streams.py (what the engine hands in and gets back), policy.py (the decisions), then what they rest on:
lanes.py (acceptance.py, copies.py), costs.py (curve.py), allocate.py (tiling.py), guard.py (ledger.py), plan.py,
layout.py. `experiments.draft_policy` drives all of it on traces.
"""
