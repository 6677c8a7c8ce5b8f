"""How fast a download takes bytes, in a time that the test has made."""

import pytest

from potluck.hub.pace import MB, Pace


class Time:
    now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time() -> Time:
    return Time()


def test_bytes_take_as_long_as_the_limit_says(time: Time) -> None:
    pace = Pace(2 * MB, clock=time.clock, sleep=time.sleep)

    for _ in range(100):
        pace.took(MB // 10)

    assert time.now == pytest.approx(5.0)


def test_without_a_limit_nobody_waits(time: Time) -> None:
    pace = Pace(None, clock=time.clock, sleep=time.sleep)

    pace.took(MB)

    assert time.now == 0


def test_a_pause_of_the_hub_is_not_made_up_for(time: Time) -> None:
    pace = Pace(MB, clock=time.clock, sleep=time.sleep)
    time.now = 100.0

    pace.took(3 * MB)

    assert time.now == pytest.approx(103.0)


def test_another_limit_holds_for_who_waits(time: Time) -> None:
    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        pace.limit(None)

    pace = Pace(1.0, clock=time.clock, sleep=sleep)

    pace.took(MB)

    assert time.now < 1
