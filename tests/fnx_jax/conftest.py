"""Golden cases shared by the whole session."""

from collections.abc import Callable

import pytest

from tests.fnx_jax.cases import Case, read_case


@pytest.fixture(scope="session")
def golden_case() -> Callable[[str], Case]:
    """Reads a golden case, once."""
    cases: dict[str, Case] = {}

    def get(name: str) -> Case:
        if name not in cases:
            cases[name] = read_case(name)
        return cases[name]

    return get
