"""Evaluations of a checkpoint, each one file: python -m experiments.eval.NAME --help."""
