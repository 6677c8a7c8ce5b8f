"""What is known of the newest release outlives the node, and is told to the home at the right time."""

from pathlib import Path

import pytest
from releases import KEYS, STRANGER, altered, signed

from potluck import __version__
from potluck.cluster.updating.known import KnownRelease
from potluck.errors import IntegrityError

NEW = "99.0.0"


@pytest.fixture
def known(tmp_path: Path) -> KnownRelease:
    return KnownRelease(tmp_path, KEYS)


def test_a_newer_release_is_known_after_a_restart_too(known: KnownRelease, tmp_path: Path) -> None:
    assert (known.version, known.is_newer) == ("", False)

    known.take(signed(NEW))
    known.looked(7.0)

    again = KnownRelease(tmp_path, KEYS)
    assert (again.version, again.is_newer, again.looked_at) == (NEW, True, 7.0)


def test_an_older_one_does_not_take_its_place(known: KnownRelease) -> None:
    known.take(signed(NEW))
    known.take(signed("98.0.0"))
    assert known.version == NEW


def test_what_was_altered_on_the_disk_is_not_known(known: KnownRelease, tmp_path: Path) -> None:
    known.take(signed(NEW))
    file = tmp_path / "release.json"
    file.write_bytes(altered(file.read_bytes()))

    assert KnownRelease(tmp_path, KEYS).release is None
    with pytest.raises(IntegrityError):
        known.take(signed("99.1.0", key=STRANGER))


def test_the_home_is_told_of_what_runs_or_is_wanted(known: KnownRelease) -> None:
    known.take(signed(NEW))
    assert known.to_tell == b""
    known.want(NEW)
    assert known.to_tell == signed(NEW)
    known.want("")
    assert known.to_tell == b""


def test_a_computer_that_runs_the_newest_release_tells_of_it(tmp_path: Path) -> None:
    (tmp_path / "release.json").write_bytes(signed(__version__))
    assert KnownRelease(tmp_path, KEYS).to_tell == signed(__version__)
