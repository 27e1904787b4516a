"""The proof that tokens depend on checkpoint, prompt, parameters and seed alone: python -m experiments.prove.

Read next: cells.py (what is varied), record.py (what is kept of a run), compare.py, claims.py (what follows from it).
"""
