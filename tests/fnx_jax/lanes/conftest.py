"""Shared by tests of kept states and of what the draft head is owed."""

from collections.abc import Iterator

import pytest

from fnx_jax.lanes.rounds import DeviceSteps
from tests.fnx_jax.lanes.slotted import with_slots


@pytest.fixture(scope="module")
def steps(exact_model) -> Iterator[DeviceSteps]:
    """The lanes under test, with slots."""
    with with_slots(exact_model("silu_two_ple").steps, 3) as steps:
        yield steps
