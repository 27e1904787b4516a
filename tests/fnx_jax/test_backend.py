"""The flags are in place before a backend starts, and their absence is told."""

import pytest

from fnx_jax import backend


def test_import_sets_the_flags():
    backend.require()


def test_missing_flags_are_named():
    present = {"XLA_FLAGS": backend.CPU_FLAGS[0]}
    assert backend.CPU_FLAGS[1] in backend.flags_missing(present)
    assert backend.CPU_FLAGS[0] not in backend.flags_missing(present)


def test_require_refuses_without_flags(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    with pytest.raises(backend.BackendError, match="individual_dot"):
        backend.require()


def test_fingerprint_depends_on_the_arithmetic():
    served, exact = backend.fingerprint("served"), backend.fingerprint("float32")
    assert served.digest() != exact.digest()
    assert served.flags == backend.CPU_FLAGS
