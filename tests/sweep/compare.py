"""Which ops have other bits in which context: what the tests assert and what `run` prints."""

from tests.sweep import cache_cases, dense_cases, draw_cases, row_cases
from tests.sweep.case import Case, unequal
from tests.sweep.contexts import CONTEXTS

GROUPS = {"dense": dense_cases.cases, "rows": row_cases.cases, "caches": cache_cases.cases, "draws": draw_cases.cases}


def all_cases() -> dict[str, Case]:
    """Every op of the model."""
    return {name: case for cases in GROUPS.values() for name, case in cases().items()}


def differing(cases: dict[str, Case], context: str) -> dict[str, int]:
    """The cases whose bits differ in a context, and in how many entries."""
    counts = {
        name: sum(unequal(found, wanted) for found, wanted in pairs) for name, pairs in CONTEXTS[context](cases).items()
    }
    return {name: count for name, count in counts.items() if count}
