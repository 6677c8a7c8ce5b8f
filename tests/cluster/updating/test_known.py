"""What is known of the newest release outlives the node, and is told to the home at the right time."""

from pathlib import Path

import pytest
from releases import EXPIRES, ISSUED, KEYS, STRANGER, altered, signed

from potluck import __version__
from potluck.cluster.updating.known import KnownRelease
from potluck.errors import IntegrityError
from potluck.update.freshness import DAY_S, StaleListError

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


def test_an_older_list_does_not_take_its_place_after_a_restart_either(
    known: KnownRelease, tmp_path: Path
) -> None:
    known.take(signed(NEW, issued=ISSUED + 1))
    (tmp_path / "release.json").unlink()  # what was seen is kept apart from what is known

    again = KnownRelease(tmp_path, KEYS)
    for each in (known, again):
        with pytest.raises(StaleListError, match="has seen one of 2023-11-14"):
            each.take(signed("99.1.0", issued=ISSUED))
    assert (known.version, again.version) == (NEW, "")


def test_a_list_that_is_kept_was_seen_though_the_note_of_that_is_lost(
    known: KnownRelease, tmp_path: Path
) -> None:
    """The power may fail between the two files, or the disk may have had room for one."""
    known.take(signed(NEW, issued=ISSUED + 1))
    (tmp_path / "seen.json").unlink()

    again = KnownRelease(tmp_path, KEYS)
    with pytest.raises(StaleListError, match="has seen one of 2023-11-14"):
        again.take(signed("99.1.0", issued=ISSUED))
    ended = KnownRelease(tmp_path, KEYS, clock=lambda: EXPIRES + 1.0)
    assert ended.ended == "2100-01-01"


def test_a_list_that_comes_again_is_noted_again(known: KnownRelease, tmp_path: Path) -> None:
    known.take(signed(NEW))
    (tmp_path / "seen.json").unlink()

    known.take(signed(NEW))

    (tmp_path / "release.json").unlink()
    assert KnownRelease(tmp_path, KEYS, clock=lambda: EXPIRES + 1.0).ended == "2100-01-01"


def test_a_later_list_may_take_a_version_back(known: KnownRelease, tmp_path: Path) -> None:
    known.take(signed(NEW))
    known.take(signed("98.0.0", issued=ISSUED + 1))

    assert known.version == "98.0.0"
    assert KnownRelease(tmp_path, KEYS).version == "98.0.0"


def test_a_list_counts_until_its_end_and_a_renewed_one_for_longer(tmp_path: Path) -> None:
    now = float(ISSUED)
    known = KnownRelease(tmp_path, KEYS, clock=lambda: now)
    known.take(signed(NEW, expires=ISSUED + DAY_S))
    known.want(NEW)
    assert known.is_newer
    assert known.to_tell
    assert known.ended == ""

    now += DAY_S + 1
    assert not known.is_newer
    assert known.to_tell == b""
    assert known.ended == "2023-11-15"
    with pytest.raises(StaleListError, match="good until 2023-11-15"):
        known.take(signed(NEW, expires=ISSUED + DAY_S))

    known.take(signed(NEW, issued=ISSUED + 1))
    assert known.is_newer
    assert known.to_tell == signed(NEW, issued=ISSUED + 1)
    assert known.ended == ""


def test_what_this_computer_runs_already_is_remembered_as_seen(tmp_path: Path) -> None:
    """It was updated by hand, and the list of an older version is no way back."""
    known = KnownRelease(tmp_path, KEYS, clock=lambda: EXPIRES + 1.0)
    with pytest.raises(StaleListError):
        known.take(signed("0.0.1"))
    known = KnownRelease(tmp_path, KEYS)
    known.take(signed("0.0.1"))

    assert (known.version, known.to_tell) == ("", b"")
    assert KnownRelease(tmp_path, KEYS, clock=lambda: EXPIRES + 1.0).ended == "2100-01-01"


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
