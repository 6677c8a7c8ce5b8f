"""`potluck keys`: a key is shown once, listed without it, and taken back."""

import json
import re
from pathlib import Path

import pytest

from potluck.cli import main


def run(home: Path, *words: str) -> int:
    return main(["keys", *words, "--home", str(home)])


def test_a_key_is_made_listed_and_revoked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "add", "notes", "--may", "ask") == 0
    made = capsys.readouterr()
    assert re.fullmatch(r"potluck-[\w-]{43}", made.out.strip())
    assert "only time" in made.err

    assert run(tmp_path) == 0
    listed = capsys.readouterr().out
    assert re.search(r"notes +ask +\d{4}-\d\d-\d\d +never", listed)
    assert made.out.strip() not in listed
    assert run(tmp_path, "--json") == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["name"], entry["may"], entry["used"]) == ("notes", ["ask"], None)

    assert run(tmp_path, "revoke", "notes") == 0
    assert run(tmp_path) == 0
    assert "No program has a key" in capsys.readouterr().out


def test_what_is_no_right_and_who_has_no_key_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(tmp_path, "add", "notes", "--may", "ask,delete")
    assert "“delete” is none of ask, load, metrics" in capsys.readouterr().err
    assert run(tmp_path, "revoke", "web") == 2
    assert "“web” has no key" in capsys.readouterr().err
