"""Ranks that are processes of one computer sum in memory; what is lost or fails is an error in the others at once."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from joined_ranks import make_home
from tiny_models import Pipeline, Reference, make_model

pytestmark = [pytest.mark.slow, pytest.mark.net]

SUPPORT = Path(__file__).parents[2] / "support"
WIDE = {"hidden_size": 96, "intermediate_size": 160, "head_dim": 32}
PIECES = [[*range(5, 30)], [8], [9]]


class Rank:
    """A process, and the lines that it is sent and sends."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "rank_process", *map(str, arguments)]
        path = os.pathsep.join([str(SUPPORT), *sys.path])
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


@contextmanager
def group(
    folder: Path, model: Path, world: int, by: Literal["memory", "links", "devices"]
) -> Iterator[list[Rank]]:
    meeting = folder / f"{world}-{by}"
    meeting.mkdir()
    make_home(meeting)
    started = [Rank(model, meeting, rank, world, by) for rank in range(world)]
    try:
        for one in started:
            assert one.read() == {"ready": True, "shares": by == "memory"}
        yield started
    finally:
        for one in started:
            one.process.kill()
            one.process.communicate()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def reference(model: Path) -> Reference:
    made = make_model("llama, biases", model, changes=WIDE)
    entries = [asdict(one) | {"path": str(one.path)} for one in made.tensors]
    (model / "tensors.json").write_text(json.dumps(entries))
    return made


def answers(ranks: list[Rank]) -> list[dict[str, Any]]:
    """What one rank computes of the pieces; all have the same bits."""
    found: list[dict[str, Any]] = []
    for ids in PIECES:
        for one in ranks:
            one.send(" ".join(map(str, ids)))
        first, *others = [one.read() for one in ranks]
        assert all(other["digest"] == first["digest"] for other in others)
        found.append(first)
    return found


@pytest.mark.parametrize("world", [2, 3])
def test_sums_in_memory_and_on_devices_are_those_over_links_also_after_steps_that_one_rank_could_not_do(
    tmp_path: Path, model: Path, reference: Reference, world: int
) -> None:
    whole = _hidden(Pipeline(reference, scheme="int8"))

    with group(tmp_path, model, world, "links") as ranks:
        over_links = answers(ranks)
    by: Literal["memory", "devices"]
    for by in ("memory", "devices"):
        with group(tmp_path, model, world, by) as ranks:
            for _ in range(3):  # it is given up by all
                for one, line in zip(ranks, ("9", "fail", "9"), strict=False):
                    one.send(line)
                assert [one.read() for one in ranks] == [{"error": "OutOfMemoryError"}] * world
            found = answers(ranks)
        if by == "memory" or world == 2:  # devices add in an order of their own
            assert [one["digest"] for one in found] == [one["digest"] for one in over_links]
    for one, expected in zip(over_links, whole, strict=True):  # torch rounds nothing to bf16
        assert (torch.tensor(one["hidden"]) - expected).norm() < 0.03 * expected.norm()


@pytest.mark.parametrize(
    ("loss", "by"), [("exit", "memory"), ("hang", "memory"), ("hang", "devices")]
)
@pytest.mark.usefixtures("reference")
def test_nobody_waits_for_a_rank_that_is_lost(
    tmp_path: Path, model: Path, loss: str, by: Literal["memory", "devices"]
) -> None:
    """A rank that hangs is ended by its node (`test_ranks.py` in `process`), here by the test."""
    with group(tmp_path, model, 3, by) as ranks:
        answers(ranks)
        *others, lost = ranks
        lost.send(loss)
        for one in others:
            one.send("9")
        if loss == "hang":
            lost.process.kill()

        for one in others:
            assert one.read() == {"error": "PeerLostError"}
            one.send("9")  # and it fails at once from then on
            assert one.read() == {"error": "PeerLostError"}


def _hidden(pipeline: Pipeline) -> list[torch.Tensor]:
    (stage,), found, position = pipeline.stages, list[torch.Tensor](), 0
    for step, ids in enumerate(PIECES):
        inputs = torch.tensor(ids, dtype=torch.int32)
        output = stage.forward(pipeline.session, inputs, epoch=1, step=step, position=position)
        assert output.hidden is not None
        found.append(output.hidden.tensor[-1])
        position += len(ids)
    return found
