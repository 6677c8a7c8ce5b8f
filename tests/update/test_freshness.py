"""A signed list of releases counts while it is the newest one that can be had, by a clock that can be right."""

import pytest

from potluck.update import freshness
from potluck.update.freshness import DAY_S, LATEST, StaleListError

ISSUED = 1_800_000_000  # 2027-01-15
ENDS = ISSUED + 90 * DAY_S


def check(*, now: float, seen: int = 0) -> None:
    freshness.check(ISSUED, ENDS, now=now, seen=seen)


@pytest.mark.parametrize("now", [ISSUED - DAY_S, ISSUED, ENDS])
def test_it_counts_from_a_day_before_its_date_until_its_end(now: int) -> None:
    check(now=now)
    check(now=now, seen=ISSUED)  # the same list, or one that was seen before it


def test_after_its_end_it_is_refused_with_both_dates() -> None:
    with pytest.raises(StaleListError, match=r"good until 2027-04-15, and .* it is 2027-04-16"):
        check(now=ENDS + DAY_S)


@pytest.mark.parametrize(
    ("now", "date"), [(ISSUED - DAY_S - 1, "2027-01-14"), (0, "1970-01-01"), (-1e18, "1970-01-01")]
)
def test_a_clock_that_is_before_its_date_is_named_as_what_is_wrong(now: float, date: str) -> None:
    with pytest.raises(StaleListError, match=rf"clock it is {date}, .*Set the clock"):
        check(now=now)


def test_one_that_is_older_than_what_was_seen_is_refused_whatever_the_clock_says() -> None:
    for now in (0, ISSUED, ENDS + 1):
        with pytest.raises(StaleListError, match=r"is of 2027-01-15, .* seen one of 2027-01-17\."):
            check(now=now, seen=ISSUED + 2 * DAY_S)


def test_two_lists_of_one_day_are_told_apart_by_their_times() -> None:
    with pytest.raises(StaleListError, match=r"01-15 08:00:00 UTC, .*-01-15 08:00:01 UTC\."):
        check(now=ISSUED, seen=ISSUED + 1)


def test_a_clock_beyond_all_dates_is_no_crash() -> None:
    with pytest.raises(StaleListError, match="9999-12-31"):
        check(now=1e300)
    assert freshness.day(LATEST) == "9999-12-31"
