"""Host side: the one exception of this package. Read next: headers.py."""


class CheckpointError(Exception):
    """Something is wrong with a checkpoint; the message names the file and, where there is one, the tensor."""
