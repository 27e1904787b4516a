"""Benches: one file or folder a subject, which prints what it measured. Only `concurrent` judges it."""
