from collections.abc import Callable

import pytest

from potluck.plan.adoption import is_better
from potluck.plan.cost import DeviceCost, ModelShape
from potluck.plan.placement import make_plan
from potluck.plan.stages import Plan


@pytest.fixture
def plan_of(
    shape_of: Callable[..., ModelShape], device_of: Callable[..., DeviceCost]
) -> Callable[[float], Plan]:
    """A plan that takes so many milliseconds for a token, and a little for the hops."""

    def plan(ms: float) -> Plan:
        return make_plan(shape_of(10), [device_of("Laptop", decode_ms=ms / 10)], {})

    return plan


@pytest.mark.parametrize(
    ("new_ms", "moved_bytes", "tokens", "better"),
    [
        (90, 0, 10**9, False),  # too little to notice
        (80, 0, 1, True),  # nothing to move
        (80, 10**9, 1000, True),  # 20 s gained, 10 s paid
        (80, 10**9, 400, False),  # 8 s gained, 10 s paid
        (100, 0, 1000, False),
        (120, 0, 1000, False),
    ],
)
def test_a_plan_changes_only_for_a_gain_that_pays_for_what_it_moves(
    plan_of: Callable[[float], Plan], new_ms: float, moved_bytes: int, tokens: int, better: bool
) -> None:
    new, old = plan_of(new_ms), plan_of(100)

    assert is_better(new, old, moved_bytes, bytes_per_s=1e8, tokens=tokens) is better
