"""The demo: once for real, and what it says when its workers do not come."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from byte_model import LAYERS, make_byte_model

from potluck import demo, launch
from potluck.demo import MAIN, WORKERS, Demo, DemoError

pytestmark = [pytest.mark.slow, pytest.mark.net]

ROOT = Path(__file__).parents[1]
FAKE = Path(__file__).parent / "support" / "fake_node.py"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the demo makes its folder."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", None)
    return place


def test_three_real_nodes_find_each_other_and_answer(tmp_path: Path, place: Path) -> None:
    model = make_byte_model(tmp_path / "model")
    words = ["demo", "--json", "--model", str(model), "--max-tokens", "5", "--temperature", "0"]

    done = subprocess.run(
        [sys.executable, "-m", "potluck", *words, "hello"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "core")},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["completion_tokens"] == 5
    assert told["time_to_first_token_s"] > 0
    stages = told["plan"]["stages"]
    assert {stage["node"] for stage in stages} == {MAIN, *WORKERS}
    shares = sorted(stage["layers"] for stage in stages)
    assert shares[0][0] == 0
    assert shares[-1][1] == LAYERS
    assert all(told["streamed_bytes"][name] > 0 for name in WORKERS)
    assert list(place.iterdir()) == []  # all three nodes ended and took their folders with them


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A fake main node, and workers that do this instead."""

    def workers(code: str) -> None:
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        monkeypatch.setattr(
            launch, "command", lambda folders, *_: [sys.executable, str(FAKE), str(folders.home)]
        )
        monkeypatch.setattr(demo, "command", lambda *_: [sys.executable, "-c", code])

    return workers


def test_a_worker_that_ends_is_named_with_what_it_said(
    place: Path, fake: Callable[[str], None]
) -> None:
    fake("print('potluck: No room in the attic.')")

    with (
        pytest.raises(DemoError, match=r"ended before it could help.*No room in the attic"),
        Demo(lambda _: None),
    ):
        pass

    assert list(place.iterdir()) == []


def test_workers_that_do_not_come_are_waited_for_no_longer_than_said(
    place: Path, fake: Callable[[str], None]
) -> None:
    fake("import time; time.sleep(60)")
    said: list[str] = []

    with (
        pytest.raises(DemoError, match=r"Study and Attic did not come in time\. It said nothing"),
        Demo(said.append, together_s=0.3),
    ):
        pass

    assert said == [f"Three nodes on this computer: {MAIN}, {' and '.join(WORKERS)}."]
    assert list(place.iterdir()) == []
