"""How long pauses are, and how their end is said."""

from datetime import datetime, timedelta, timezone

import pytest

from potluck.api.values.pausing import PauseLength, pause_end, paused_line, shown_end

ZONE = timezone(timedelta(hours=2))


def at(day: int, hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 11, day, hour, minute, tzinfo=ZONE)


@pytest.mark.parametrize(
    ("length", "now", "end"),
    [
        ("hour", at(23, 17, 30), at(23, 18, 30)),
        ("hour", at(23, 23, 30), at(24, 0, 30)),
        ("tomorrow", at(23, 17, 30), at(24, 6)),
        ("tomorrow", at(30, 6), datetime(2026, 12, 1, 6, tzinfo=ZONE)),
        ("tomorrow", at(24, 1), at(24, 6)),  # who is up at night means the next morning
    ],
)
def test_a_pause_ends_after_an_hour_or_in_the_morning(
    length: PauseLength, now: datetime, end: datetime
) -> None:
    assert pause_end(length, now) == end.timestamp()


def test_a_pause_until_the_owner_resumes_has_no_end() -> None:
    assert pause_end("resume", at(23, 12)) is None
    assert paused_line(None) == "Paused"


@pytest.mark.parametrize(
    ("end", "shown"),
    [
        (at(23, 18, 30), "18:30"),
        (at(24, 6), "tomorrow, 06:00"),
        (at(25, 6), "2026-11-25, 06:00"),
        (at(22, 23), "2026-11-22, 23:00"),
    ],
)
def test_the_end_is_said_in_the_time_of_this_computer(end: datetime, shown: str) -> None:
    assert shown_end(end.timestamp(), at(23, 12)) == shown
