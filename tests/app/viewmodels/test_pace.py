"""How fast something comes."""

from potluck_app.viewmodels.pace import Pace

MB = 10**6


def test_it_is_said_after_three_seconds_and_of_what_came_since() -> None:
    now = [100.0]
    pace = Pace(lambda: now[0])
    assert pace.line(50 * MB, 100 * MB) == ""  # half of it was there already
    now[0] += 2.0
    assert pace.line(54 * MB, 100 * MB) == ""
    now[0] += 3.0

    assert pace.line(60 * MB, 100 * MB) == "2 MB/s · 20 s left"


def test_nothing_is_said_while_nothing_comes_and_another_file_begins_anew() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])
    pace.line(0, 10 * MB)
    now[0] += 9.0
    assert pace.line(0, 10 * MB) == ""
    assert pace.line(9 * MB, 10 * MB) == "1 MB/s · 1 s left"

    assert pace.line(1 * MB, 10 * MB) == ""  # less than before
    now[0] += 4.0
    assert pace.line(5 * MB, 10 * MB) == "1 MB/s · 5 s left"
    pace.forget()
    assert pace.line(6 * MB, 10 * MB) == ""
