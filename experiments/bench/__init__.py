"""Benches: one file a subject, which prints what it measured and asserts nothing."""
