"""What is seen of a computer, in the way of each system."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest

from potluck.api.values.politeness import Facts, Rules
from potluck.api.values.vitals import Vitals
from potluck.system import looks
from potluck.system.commands import Ask, ask
from potluck.system.looks import Looks


def answering(**answers: str) -> Ask:
    """Answer a program by its name; `name_word` is the answer if that word is among the words."""

    def ask(*words: str) -> str | None:
        special = (f"{words[0]}_{word.strip('-')}" for word in words[1:])
        names = (name for name in (*special, words[0]) if name in answers)
        return next((answers[name] for name in names), None)

    return ask


FULL = "_NET_WM_STATE(ATOM) = _NET_WM_STATE_FULLSCREEN, _NET_WM_STATE_FOCUSED"
ACTIVE = "_NET_ACTIVE_WINDOW(WINDOW): window id # 0x2a00007"


@pytest.mark.parametrize(
    ("answers", "is_full"),
    [
        ({}, None),
        ({"busctl": "i 1"}, True),
        ({"busctl": "i 0"}, False),
        ({"busctl": "i 0", "xprop_root": ACTIVE, "xprop_id": FULL}, True),
        ({"xprop_root": ACTIVE, "xprop_id": "_NET_WM_STATE(ATOM) = "}, False),
        ({"xprop_root": ACTIVE}, None),  # it was closed meanwhile
        ({"xprop_root": "_NET_ACTIVE_WINDOW:  no such atom on any window."}, None),
    ],
)
def test_linux_knows_games_and_windows_that_fill_the_screen(
    answers: dict[str, str], is_full: bool | None
) -> None:
    assert looks.full_screen_on_linux(answering(**answers)) is is_full


@pytest.mark.parametrize(
    ("answers", "idle_s"),
    [({}, None), ({"busctl": "t 61500"}, 61.5), ({"xprintidle": "2000\n"}, 2.0)],
)
def test_linux_knows_the_time_since_the_last_key(
    answers: dict[str, str], idle_s: float | None
) -> None:
    assert looks.idle_on_linux(answering(**answers)) == idle_s


ASSERTIONS = """Assertion status system-wide:
   PreventUserIdleDisplaySleep    {}
   PreventUserIdleSystemSleep     1
"""
IDLE = """  | |   "HIDIdleTime" = 4500000000\n"""


def test_macos_knows_both() -> None:
    assert looks.full_screen_on_macos(answering(pmset=ASSERTIONS.format(1))) is True
    assert looks.full_screen_on_macos(answering(pmset=ASSERTIONS.format(0))) is False
    assert looks.full_screen_on_macos(answering()) is None
    assert looks.idle_on_macos(answering(ioreg=IDLE)) == 4.5
    assert looks.idle_on_macos(answering()) is None


class Windows:
    """The libraries of a Windows, as far as they are asked."""

    def __init__(self, *, state: int, ticks: int, now: int, fails: bool = False) -> None:
        def tell_state(place: Any) -> int:
            place._obj.value = state
            return 1 if fails else 0

        def tell_input(place: Any) -> int:
            place._obj.ticks = ticks
            return 0 if fails else 1

        self.shell32 = SimpleNamespace(SHQueryUserNotificationState=tell_state)
        self.user32 = SimpleNamespace(GetLastInputInfo=tell_input)
        self.kernel32 = SimpleNamespace(GetTickCount=lambda: now)


def test_windows_knows_both(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = Windows(state=3, ticks=2**32 - 1000, now=500)  # the counter began again at 0
    monkeypatch.setattr(looks.ctypes, "windll", windows, raising=False)
    assert looks.full_screen_on_windows() is True
    assert looks.idle_on_windows() == 1.5

    busy = Windows(state=2, ticks=0, now=0)  # busy is no game
    monkeypatch.setattr(looks.ctypes, "windll", busy, raising=False)
    assert looks.full_screen_on_windows() is False

    refuses = Windows(state=3, ticks=0, now=0, fails=True)
    monkeypatch.setattr(looks.ctypes, "windll", refuses, raising=False)
    assert looks.full_screen_on_windows() is None
    assert looks.idle_on_windows() is None


@pytest.mark.parametrize(
    ("current", "high", "is_hot"),
    [(90, 100, False), (100, 100, True), (94, None, False), (95, 0, True), (96, 65261, True)],
)
def test_a_processor_is_hot_at_the_limit_of_its_sensor(
    current: float, high: float | None, is_hot: bool
) -> None:
    sensors = {"nvme": [SimpleNamespace(current=120, high=80)]}
    assert looks.hot(sensors) is None

    entry = SimpleNamespace(current=current, high=high)
    assert looks.hot({**sensors, "coretemp": [entry]}) is is_hot


@pytest.mark.parametrize(
    ("battery", "is_on"),
    [
        (None, None),
        (SimpleNamespace(power_plugged=True), False),
        (SimpleNamespace(power_plugged=None), False),
        (SimpleNamespace(power_plugged=False), True),
    ],
)
def test_a_computer_runs_on_its_battery_if_it_says_so(
    monkeypatch: pytest.MonkeyPatch, battery: Any, is_on: bool | None
) -> None:
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)

    assert looks.on_battery() is is_on


def entry(current: float | None) -> SimpleNamespace:
    return SimpleNamespace(current=current, high=None)


@pytest.mark.parametrize(
    ("battery", "sensors", "seen"),
    [
        (None, {}, Vitals()),
        (None, {"nvme": [entry(48.0)]}, Vitals()),  # no processor
        (None, {"coretemp": [entry(61.0), entry(68.4)], "acpitz": [entry(27.8)]}, Vitals(heat_c=70.0)),
        (None, {"k10temp": [entry(-273.1), entry(255.0), entry(None)]}, Vitals()),  # nonsense
        (SimpleNamespace(percent=63.7, power_plugged=False), {}, Vitals(battery=0.64)),
        (SimpleNamespace(percent=104.0, power_plugged=True), {}, Vitals(battery=1.0, plugged=True)),
        (SimpleNamespace(percent=40, power_plugged=None), {}, Vitals(battery=0.4)),
    ],
)  # fmt: skip
def test_battery_and_heat_are_told_in_calm_steps(
    battery: Any, sensors: dict[str, list[Any]], seen: Vitals
) -> None:
    assert looks.vitals(battery, sensors, Vitals()) == seen


def test_what_wavers_between_two_steps_stays_at_the_one_that_was_told() -> None:
    told = Vitals()
    steps: list[Vitals] = []
    for heat, percent in ((72.6, 63.6), (72.4, 63.4), (71.2, 64.4), (70.0, 63.0), (77.0, 80.0)):
        battery = SimpleNamespace(percent=percent, power_plugged=False)
        told = looks.vitals(battery, {"k10temp": [entry(heat)]}, told)
        steps.append(told)

    assert [each.heat_c for each in steps] == [75.0, 75.0, 75.0, 70.0, 75.0]
    assert [each.battery for each in steps] == [0.64, 0.64, 0.64, 0.63, 0.8]


def test_what_this_computer_says_of_itself_is_within_its_bounds() -> None:
    told = msgspec.json.encode(looks.looks().vitals(Vitals()))

    msgspec.json.decode(told, type=Vitals)


def test_only_what_the_rules_need_is_looked_at_and_what_cannot_be_read_is_a_computer_at_rest() -> (
    None
):
    asked: list[str] = []

    def look(name: str, value: Any) -> Callable[[], Any]:
        return lambda: (asked.append(name), value)[1]

    eyes = Looks(
        is_full_screen=look("games", None),
        idle_s=look("activity", 5.0),
        is_on_battery=look("battery", True),
        free_share=look("memory", 0.5),
        is_hot=look("heat", None),
    )

    assert eyes.at(Rules(memory=False)) == Facts(is_on_battery=True)
    assert asked == ["games", "battery", "heat"]


@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_no_look_raises_where_its_programs_are_missing(system: str) -> None:
    facts = looks.looks(system, answering()).at(Rules(activity=True))

    assert 0 <= facts.free_share <= 1
    assert not facts.is_full_screen


def test_a_program_that_is_missing_or_fails_says_nothing() -> None:
    assert ask("no-such-program-of-potluck") is None
    assert ask("python3", "-c", "raise SystemExit(1)") is None
    assert ask("python3", "-c", "print(5)") == "5\n"
