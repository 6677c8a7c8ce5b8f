"""Ranks that are processes compute together by `torch.distributed`; one that is lost is an error in the others."""

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import CPU, Pipeline, make_model

from potluck.engine.collective import CollectiveExchange, library_for, new_communicator
from potluck.errors import RankLostError

PROCESS = Path(__file__).parent.parent / "support" / "rank_process.py"
WIDE = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32}
TIMEOUT_S = 3.0  # how long a rank waits for one that hangs


class Rank:
    """A process, and the lines that it is sent and sends."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, str(PROCESS), *map(str, arguments)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


@contextmanager
def ranks(folder: Path, model: Path, count: int = 2) -> Iterator[list[Rank]]:
    communicator = new_communicator(folder)
    started = [Rank(model, communicator, rank, count, TIMEOUT_S) for rank in range(count)]
    try:
        assert [one.read() for one in started] == [{"ready": True}] * count
        yield started
    finally:
        for one in started:
            one.process.kill()
            one.process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["exit", "hang"])
def test_processes_compute_together_and_none_waits_for_one_that_is_lost(
    tmp_path: Path, loss: str
) -> None:
    model, meeting = tmp_path / "model", tmp_path / "meeting"
    meeting.mkdir()
    reference = make_model("llama, biases", model, changes=WIDE)
    entries = [asdict(one) | {"path": str(one.path)} for one in reference.tensors]
    (model / "tensors.json").write_text(json.dumps(entries))
    pipeline = Pipeline(reference, scheme="int8")
    whole = _hidden(pipeline, [[5, 6, 7], [8]])

    with ranks(meeting, model) as group:
        for ids, expected in zip(("5 6 7", "8"), whole, strict=True):
            for one in group:
                one.send(ids)
            first, second = (one.read() for one in group)
            assert first["digest"] == second["digest"]
            assert torch.allclose(torch.tensor(first["hidden"]), expected, rtol=0.02, atol=0.02)

        first, second = group
        second.send(loss)
        first.send("9")

        assert first.read() == {"error": "RankLostError"}
        first.send("9")  # and it fails at once from then on
        assert first.read() == {"error": "RankLostError"}


def _hidden(pipeline: Pipeline, pieces: list[list[int]]) -> list[torch.Tensor]:
    (stage,), found, position = pipeline.stages, list[torch.Tensor](), 0
    for step, ids in enumerate(pieces):
        inputs = torch.tensor(ids, dtype=torch.int32)
        output = stage.forward(pipeline.session, inputs, epoch=1, step=step, position=position)
        assert output.hidden is not None
        found.append(output.hidden.tensor[-1])
        position += len(ids)
    return found


def test_a_rank_that_nobody_meets_does_not_wait_for_ever(tmp_path: Path) -> None:
    with pytest.raises(RankLostError, match="did not answer in time"):
        CollectiveExchange(new_communicator(tmp_path), 0, 2, CPU, timeout_s=0.2)


def test_a_group_of_one_sums_alone(tmp_path: Path) -> None:
    exchange = CollectiveExchange(new_communicator(tmp_path), 0, 1, CPU, timeout_s=5)
    rows = torch.randn(3, 5)
    given = rows.clone()

    exchange.sum(rows)
    numbers = bytearray(struct.pack("2f", 1.5, -2.0))
    exchange.sum_memory(memoryview(numbers))

    assert torch.equal(rows, given)
    assert struct.unpack("2f", numbers) == (1.5, -2.0)
    exchange.abort()
    with pytest.raises(RankLostError):
        exchange.sum(rows)


def test_only_nvidia_gpus_sum_by_nccl() -> None:
    assert library_for(CPU) == "gloo"
    assert library_for(torch.device("mps")) == "gloo"
