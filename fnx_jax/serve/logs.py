"""Host side: where log lines go and how they look. Read next: access_log.py."""

import json
import logging
import sys
from typing import TextIO


class JsonFormatter(logging.Formatter):
    """One JSON object a line; an access line's fields stand beside the rest."""

    def format(self, record: logging.LogRecord) -> str:
        out = {"time": self.formatTime(record), "level": record.levelname, "logger": record.name}
        fields = getattr(record, "fields", None)
        out |= fields if fields is not None else {"message": record.getMessage()}
        if record.exc_info:
            out["traceback"] = self.formatException(record.exc_info)
        return json.dumps(out, ensure_ascii=False, default=str)


def configure_logging(as_json: bool = False, quiet: bool = False, stream: TextIO | None = None) -> None:
    """Sends the package's and the HTTP server's log lines to a stream, stderr by default; warnings only where quiet."""
    handler = logging.StreamHandler(stream or sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if as_json else plain)
    for name, level in (("fnx_jax", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.WARNING if quiet else level)
        logger.propagate = False
