"""`plan`, with a fake node."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_backend import PLAN, Server
from plan_json import PLAN_JSON

from potluck.api.values import schema

pytestmark = pytest.mark.net

Potluck = Callable[..., int]
Output = pytest.CaptureFixture[str]


def test_a_plan_as_json_has_exactly_these_fields(potluck: Potluck, capsys: Output) -> None:
    assert potluck("plan", "--json") == 0
    assert json.loads(capsys.readouterr().out) == PLAN_JSON


def test_a_plan_for_people(potluck: Potluck, capsys: Output) -> None:
    potluck("plan")

    shown = capsys.readouterr().out
    assert "embedding, layers 0 to 1" in shown
    assert "layers 2 to 5, head" in shown
    assert "there alone: does not fit." in shown
    assert PLAN.explanation in shown


def test_what_was_asked_for_reaches_the_planner(
    server: Server, potluck: Potluck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    words = ["--scheme", "bf16", "--layers", "my=pc=2, there=4", "--workers", "1", "--context", "9"]
    words += ["--prefill", "my=pc, attic", "--pictures", "the den", "--prompt", "8"]
    (tmp_path / "tiny.gguf").touch()

    potluck("plan", "--model", "model", *words)
    potluck("plan", "--model", "tiny.gguf")
    potluck("plan", "--model", "Qwen/Qwen3-8B")

    assert server.backend.planned == [
        schema.PlanRequest(
            model=str(tmp_path / "model"),
            scheme="bf16",
            layers=(("my=pc", 2), ("there", 4)),
            prefill=("my=pc", "attic"),
            pictures="the den",
            workers=1,
            context=9,
            prompt=8,
        ),
        schema.PlanRequest(model=str(tmp_path / "tiny.gguf")),
        schema.PlanRequest(model="Qwen/Qwen3-8B"),
    ]
