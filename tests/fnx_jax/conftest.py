"""Models shared by the whole session: each compiles once."""

from collections.abc import Callable

import pytest

import fnx_jax
from tests.fnx_jax.cases import FOLDER, Case, read_case


@pytest.fixture(scope="session")
def demo_model() -> fnx_jax.Model:
    """The embedded demo as served."""
    return fnx_jax.load(FOLDER.parent.parent / "checkpoints" / "demo", lanes=4, context=512)


@pytest.fixture(scope="session")
def golden_case() -> Callable[[str], Case]:
    """Reads a golden case, once."""
    cases: dict[str, Case] = {}

    def get(name: str) -> Case:
        if name not in cases:
            cases[name] = read_case(name)
        return cases[name]

    return get
