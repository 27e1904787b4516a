"""Host side: API keys. Keys are kept as digests and compared in constant time. Read next: gate.py."""

import hashlib
import hmac
from collections.abc import Sequence

OPEN_PATHS = frozenset({"/health", "/ping", "/version"})


class KeyRing:
    """The keys a server accepts; without any, everybody may come in.

    Args: keys: in plain text. protect_metrics: `/metrics` asks for one too.
    """

    def __init__(self, keys: Sequence[str], protect_metrics: bool = False):
        self._digests = tuple(_digest(key) for key in keys)
        self._open = OPEN_PATHS if protect_metrics else OPEN_PATHS | {"/metrics"}

    def admits(self, path: str, authorization: str | None) -> bool:
        """Whether a request with this Authorization header may use this path."""
        if not self._digests or path in self._open:
            return True
        scheme, _, key = (authorization or "").partition(" ")
        offered = _digest(key.strip())
        # Every key is compared, so that the time doesn't tell which one came close.
        matches = [hmac.compare_digest(offered, digest) for digest in self._digests]
        return scheme.lower() == "bearer" and any(matches)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", errors="surrogateescape")).digest()
