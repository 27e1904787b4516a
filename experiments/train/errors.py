"""Host side: what training refuses."""


class TrainingError(ValueError):
    """A plan, a folder or a text that training can't work with; the message says what was wanted."""
