"""Programs have keys of their own, which may be taken back at any time."""

from pathlib import Path

import pytest

from potluck.errors import NotFoundError, UsageError
from potluck.program_keys import MOST_KEYS, ProgramKeys


class Clock:
    """The time, which stands still."""

    now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys(tmp_path: Path, clock: Clock) -> ProgramKeys:
    return ProgramKeys(tmp_path / "keys.json", tmp_path / "uses.json", clock)


def test_a_key_is_found_by_its_text_alone(keys: ProgramKeys) -> None:
    notes, web = keys.add("notes", ("ask",)), keys.add("web")

    found = keys.find(notes)

    assert found is not None
    assert (found.name, found.may) == ("notes", ("ask",))
    assert (web_key := keys.find(web)) is not None
    assert web_key.may == ("ask", "load")
    assert [keys.find(text) for text in ("", notes[:-1], found.digest)] == [None] * 3


def test_the_file_has_no_key_and_is_its_owners_alone(keys: ProgramKeys, tmp_path: Path) -> None:
    text = keys.add("notes")

    assert text not in (tmp_path / "keys.json").read_text()
    assert (tmp_path / "keys.json").stat().st_mode & 0o077 == 0
    assert len(text) > 40


def test_a_revoked_key_is_refused_at_once_also_where_it_was_read_before(
    keys: ProgramKeys, tmp_path: Path
) -> None:
    text = keys.add("notes")
    other = ProgramKeys(tmp_path / "keys.json", tmp_path / "uses.json")  # of another process
    assert other.find(text) is not None

    keys.revoke("notes")

    assert other.find(text) is None
    with pytest.raises(NotFoundError, match="none"):
        keys.revoke("notes")


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 65, "\x1b[31m"])
def test_names_can_be_shown(keys: ProgramKeys, name: str) -> None:
    with pytest.raises(UsageError, match="printable"):
        keys.add(name)


def test_a_program_has_one_key_and_there_are_not_too_many(keys: ProgramKeys) -> None:
    keys.add("notes")
    with pytest.raises(UsageError, match="has a key already"):
        keys.add("notes")
    for number in range(MOST_KEYS - 1):
        keys.add(str(number))
    with pytest.raises(UsageError, match="Revoke"):
        keys.add("more")


@pytest.mark.parametrize("damaged", ["", "{", '{"keys": 1}', '{"keys": [{"name": 1}]}', "\0"])
def test_no_key_is_taken_from_a_damaged_file_and_none_is_added(
    keys: ProgramKeys, tmp_path: Path, damaged: str
) -> None:
    text = keys.add("notes")
    (tmp_path / "keys.json").write_text(damaged)

    assert keys.find(text) is None
    with pytest.raises(UsageError, match="damaged"):
        keys.add("more")
    assert (tmp_path / "keys.json").read_text() == damaged


def test_uses_are_noted_to_the_minute(keys: ProgramKeys, clock: Clock, tmp_path: Path) -> None:
    text = keys.add("notes")
    (key,) = keys.all()
    assert keys.last_uses() == {}

    keys.find(text)
    first = keys.last_uses()[key.digest]
    clock.now += 30
    keys.find(text)
    assert keys.last_uses()[key.digest] == first
    clock.now += 31
    keys.find(text)
    assert keys.last_uses()[key.digest] == first + 61

    (tmp_path / "uses.json").write_text("nonsense")
    assert keys.last_uses() == {}
