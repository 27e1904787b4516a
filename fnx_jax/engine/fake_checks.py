"""Host side: what a plan must satisfy, as far as it can be seen without knowing the lanes. Read next: fake.py."""

import numpy as np

from fnx_jax.engine.fake_pages import require
from fnx_jax.engine.steps import RoundPlan, Steps


def check_plan(plan: RoundPlan, steps: Steps) -> None:
    """Raises PlanError for a plan that no device could run."""
    rows = len(plan.token_B)
    width = -(-steps.context // steps.page)
    require(1 <= rows <= steps.max_rows, f"{rows} rows, from 1 to {steps.max_rows} fit")
    for name, shape, dtype in (
        ("token_B", (rows,), np.int32),
        ("lane_B", (rows,), np.int32),
        ("position_B", (rows,), np.int32),
        ("speculative_B", (rows,), np.bool_),
        ("history_BN", (rows, steps.history), np.int32),
        ("pages_LP", (steps.lanes, width), np.int32),
    ):
        array = getattr(plan, name)
        require(array.shape == shape and array.dtype == dtype, f"{name} is {array.dtype}{array.shape}")
    for lane, pages in enumerate(plan.pages_LP):
        pages = pages[pages >= 0]
        require(len(np.unique(pages)) == len(pages), f"lane {lane}: a page stands twice in the page table")
    _check_written(plan, steps)
    changes = np.flatnonzero(np.diff(plan.lane_B)) + 1
    lanes = plan.lane_B[[0, *changes]]
    require(len(np.unique(lanes)) == len(lanes), "a lane's rows are not contiguous")
    _check_windows(plan, steps)
    _check_asked(plan)


def _check_written(plan: RoundPlan, steps: Steps) -> None:
    """No page that a row writes, or the row before it, stands in another lane's table."""
    for lane, position in zip(plan.lane_B, plan.position_B, strict=True):
        pages = plan.pages_LP[lane, [position // steps.page, max(0, position - 1) // steps.page]]
        require(
            not np.isin(np.delete(plan.pages_LP, lane, axis=0), pages[pages >= 0]).any(),
            f"lane {lane}: position {position} lies in another lane's page",
        )


def _check_windows(plan: RoundPlan, steps: Steps) -> None:
    for row in np.flatnonzero(plan.speculative_B):
        require(row > 0 and plan.lane_B[row - 1] == plan.lane_B[row], f"row {row}: a draft follows nothing")
        require(row % steps.row_tile > 0, f"row {row}: a window crosses a tile border")


def _check_asked(plan: RoundPlan) -> None:
    for name, asked in (("draw", plan.draws), ("score", plan.scores)):
        rows = [entry.row for entry in asked]
        require(len(set(rows)) == len(rows), f"two {name}s of one row")
        require(all(0 <= row < len(plan.token_B) for row in rows), f"a {name} of a row that is not there")
    for draw in plan.draws:
        require(draw.position == plan.position_B[draw.row] + 1, f"row {draw.row} draws position {draw.position}")
