"""A seeded random search for unequal cells over tiny networks: trials, their checkpoints, the checks, the command."""
