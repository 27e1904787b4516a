"""Host side: the HTTP server over an engine. README.md holds the map; runner.py is the door."""
