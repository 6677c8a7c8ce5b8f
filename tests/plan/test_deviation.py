from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from potluck.plan.cost import LinkCost
from potluck.plan.deviation import LEAST_MS, REST_S, WEIGHED_S, Deviation, Pace, has_changed


def deviations(*times_ms: float, normal_ms: float | None = None) -> list[bool]:
    deviation = Deviation(normal_ms)
    return [deviation.observe(ms, now) for now, ms in enumerate(times_ms)]


def test_a_change_is_believed_when_two_times_in_a_row_say_it() -> None:
    assert deviations(4, 100, 4, 100, 4) == [False] * 5
    assert deviations(4, 100, 100, 100, 100) == [False, False, True, False, False]


def test_the_first_time_is_normal_unless_another_one_is_expected() -> None:
    assert deviations(100, 100) == [False, False]
    assert deviations(100, 100, normal_ms=4) == [False, True]


def test_a_link_that_gets_better_deviates_too() -> None:
    assert deviations(100, 4, 4) == [False, False, True]


def test_what_a_loaded_computer_adds_is_no_change() -> None:
    assert deviations(0.4, *[0.4 + LEAST_MS] * 5) == [False] * 6


def test_after_a_change_the_next_one_is_not_believed_for_a_while() -> None:
    deviation = Deviation(4.0)
    deviation.observe(100, 0.0)
    assert deviation.observe(100, 1.0)
    assert not deviation.observe(4, 2.0)
    assert not deviation.observe(4, 0.9 + REST_S)
    assert deviation.observe(4, 1.0 + REST_S)


def test_a_link_has_changed_when_its_latency_or_its_rate_has() -> None:
    link = LinkCost(rtt_ms=4, bytes_per_s=37e6)

    assert has_changed(None, link)
    assert has_changed(link, LinkCost(rtt_ms=100, bytes_per_s=37e6))
    assert has_changed(link, LinkCost(rtt_ms=4, bytes_per_s=2.5e6))
    assert not has_changed(link, LinkCost(rtt_ms=5, bytes_per_s=33e6))


# --- devices


def test_a_device_that_takes_twice_as_long_is_slow_and_told_once() -> None:
    pace = Pace()

    assert not pace.observe(1.9, 0.0)
    assert pace.observe(2.0, 1.0)
    assert not pace.observe(3.9, 1.0 + 2 * WEIGHED_S)


def test_a_slow_device_is_quick_again_after_a_rest() -> None:
    pace = Pace()
    assert pace.observe(3.0, 0.0)

    assert not pace.observe(1.0, WEIGHED_S - 1)
    assert not pace.observe(2.1, WEIGHED_S)
    assert pace.observe(1.0, WEIGHED_S)


def test_a_slow_device_is_slow_until_it_is_nearly_as_quick_as_usual() -> None:
    pace = Pace()
    slow: list[bool] = []
    for second, factor in enumerate((1.9, 2.0, 1.6, 1.4, 1.9)):
        pace.observe(factor, second)
        slow.append(pace.is_slow)

    assert slow == [False, True, True, False, False]


@given(factors=st.lists(st.floats(0.5, 4.0), max_size=300))
def test_a_plan_is_never_weighed_twice_within_the_rest(factors: list[float]) -> None:
    pace = Pace()
    weighed = [second for second, factor in enumerate(factors) if pace.observe(factor, second)]

    assert all(after - before >= WEIGHED_S for before, after in pairwise(weighed))


def test_a_device_is_compared_with_what_its_plan_was_made_with() -> None:
    pace = Pace()
    pace.is_planned_with(3.0)

    assert not pace.observe(3.0, 0.0)
    assert pace.observe(2.0, 0.0)
