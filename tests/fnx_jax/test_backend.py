"""The flags are in place before a backend starts, and their absence is told."""

import os
import subprocess
import sys

import jax
import pytest

from fnx_jax import backend


def test_import_sets_the_flags():
    backend.require()


def test_missing_flags_are_named():
    present = {"XLA_FLAGS": backend.CPU_FLAGS[0]}
    assert backend.CPU_FLAGS[1] in backend.flags_missing(present)
    assert backend.CPU_FLAGS[0] not in backend.flags_missing(present)


def test_a_file_of_flags_is_refused(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "flags.txt")
    with pytest.raises(backend.BackendError, match=r"XLA_FLAGS=flags\.txt"):
        backend.configure()


def test_a_flag_set_again_to_another_value_is_missing():
    required = " ".join(backend.CPU_FLAGS + backend.GPU_FLAGS)
    for flag in backend.CPU_FLAGS + backend.GPU_FLAGS:
        other = f"{flag.split('=')[0]}=other"
        assert backend.flags_missing({"XLA_FLAGS": f"{required} {other}"}) == (flag,)
        assert backend.flags_missing({"XLA_FLAGS": f"{other} {required}"}) == ()


def test_require_refuses_without_flags(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    with pytest.raises(backend.BackendError, match="individual_dot"):
        backend.require()


def test_fingerprint_depends_on_the_arithmetic():
    served, exact = backend.fingerprint("served"), backend.fingerprint("float32")
    assert served.digest() != exact.digest()
    assert served.flags[: len(backend.CPU_FLAGS)] == backend.CPU_FLAGS


def test_fingerprint_depends_on_other_flags(monkeypatch):
    plain = backend.fingerprint("served")
    monkeypatch.setenv("XLA_FLAGS", f"--xla_cpu_enable_fast_math=true {os.environ['XLA_FLAGS']}")
    other = backend.fingerprint("served")
    assert set(other.flags) - set(plain.flags) == {"--xla_cpu_enable_fast_math=true"}
    assert other.digest() != plain.digest()


def test_require_refuses_64_bit_defaults():
    with jax.enable_x64(True), pytest.raises(backend.BackendError, match="jax_enable_x64"):
        backend.require()


LATE = """
import jax
import jax.extend.backend

jax.devices()
jax.extend.backend.clear_backends()
from fnx_jax import backend

backend.require()
backend.require_in_force()
"""


def test_flags_that_come_after_xla_read_its_own_are_told():
    backend.require_in_force()
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    late = subprocess.run([sys.executable, "-c", LATE], env=environment, capture_output=True, text=True, timeout=120)
    assert "BackendError: products and sums are fused" in late.stderr
