"""Whether the system has set its clock by the network."""

import pytest

from potluck.doctor.looks.clocks import look_at_clock


@pytest.mark.parametrize(("said", "expected"), [("yes\n", True), ("no\n", None), (None, None)])
def test_linux_says_whether_its_clock_is_synchronised(
    said: str | None, expected: bool | None
) -> None:
    assert look_at_clock(lambda *words: said, platform="linux") is expected


def test_other_systems_are_not_asked() -> None:
    assert look_at_clock(lambda *words: "yes", platform="win32") is None
