"""Checks of the equalities that anyone can run."""
