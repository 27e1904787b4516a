"""Host side: how many drafts a lane makes and tests."""
