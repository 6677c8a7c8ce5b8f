"""How long is left alone what fails."""

import pytest

from potluck.cluster.master.backoff import Backoff


@pytest.fixture
def now() -> list[float]:
    """The time of a clock that tests set."""
    return [0.0]


@pytest.fixture
def backoff(now: list[float]) -> Backoff[str]:
    return Backoff(20.0, most_s=50.0, clock=lambda: now[0])


def test_each_failure_doubles_the_pause_up_to_the_longest(
    backoff: Backoff[str], now: list[float]
) -> None:
    assert backoff.is_due("laptop")
    for pause_s in (20.0, 40.0, 50.0, 50.0):
        backoff.failed("laptop")
        now[0] += pause_s - 1
        assert not backoff.is_due("laptop")
        assert backoff.is_due("attic")
        now[0] += 1
        assert backoff.is_due("laptop")


def test_what_has_worked_begins_with_the_shortest_pause_again(
    backoff: Backoff[str], now: list[float]
) -> None:
    backoff.failed("laptop")
    backoff.failed("laptop")
    backoff.worked("laptop")
    assert backoff.is_due("laptop")
    backoff.failed("laptop")
    now[0] = 20.0
    assert backoff.is_due("laptop")
