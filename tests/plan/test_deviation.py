from potluck.plan.cost import LinkCost
from potluck.plan.deviation import LEAST_MS, REST_S, Deviation, has_changed


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
