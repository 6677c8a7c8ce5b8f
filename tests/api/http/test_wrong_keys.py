"""Addresses that send wrong keys wait, longer each time."""

from potluck.api.http.wrong_keys import FORGET_S, GUESSES, LONGEST_WAIT_S, WrongKeys


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_wait_is_twice_as_long_up_to_an_hour() -> None:
    clock = Clock()
    keys = WrongKeys(clock)
    waits: list[float] = []
    for _ in range(9):
        for _ in range(GUESSES):
            assert keys.wait_s("192.168.0.66") == 0
            keys.note("192.168.0.66")
        waits.append(keys.wait_s("192.168.0.66"))
        clock.now += waits[-1]

    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600, LONGEST_WAIT_S]


def test_all_addresses_of_an_ipv6_network_are_one() -> None:
    keys = WrongKeys(Clock())
    for number in range(GUESSES):
        keys.note(f"2001:db8:0:1::{number:x}")

    assert keys.wait_s("2001:db8:0:1:ffff::1") > 0
    assert keys.wait_s("2001:db8:0:2::1") == 0


def test_an_address_that_guessed_nothing_for_a_day_begins_anew() -> None:
    clock = Clock()
    keys = WrongKeys(clock)
    for _ in range(GUESSES - 1):
        keys.note("192.168.0.66")
    clock.now += FORGET_S + 1
    keys.note("192.168.0.66")

    assert keys.wait_s("192.168.0.66") == 0
