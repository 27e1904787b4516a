"""Long runs of a server with everything on against one with drafts and kept states off. Read next: __main__.py."""
