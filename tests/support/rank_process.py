"""A rank of a group as a process: it loads its share of a model, computes steps, and prints what came out.

    python -m rank_process FOLDER MEETING RANK WORLD memory|links|devices

It reads lines: token ids to compute next; `hang`, to never answer again; `fail`, to begin a step and say that it cannot
do it; `exit`, to end at once.
"""

import hashlib
import json
import os
import sys
import threading
import traceback
from pathlib import Path

import shared_kernels
import torch
from gloo import GLOO
from joined_ranks import joined

from potluck.cluster.stage.ranks import Ranks
from potluck.engine.loading.reading import StoredTensor
from potluck.engine.loading.weights import load_weights
from potluck.engine.stage import Stage
from potluck.errors import OutOfMemoryError
from potluck.ids import SessionId
from potluck.model.config import ModelConfig
from potluck.model.shares import Share

SESSION = SessionId("chat")


def main(folder: Path, meeting: Path, rank: int, world: int, exchange: str) -> None:
    torch.set_num_threads(1)
    shared_kernels.keep()
    config = ModelConfig.from_dict(json.loads((folder / "config.json").read_text()))
    weights = load_weights(
        config, range(config.num_layers), embedding=True, head=False,
        tensors=stored(folder), scheme="int8", device=torch.device("cpu"),
        share=Share(rank=rank, parts=(1,) * world),
    )  # fmt: skip
    transport = GLOO if exchange == "devices" else None
    with joined(meeting, rank, world, shares=exchange != "links", transport=transport) as ranks:
        stage = Stage(weights, context=96, cache_budget=1 << 24, epoch=1, exchange=ranks)
        stage.open(SESSION, epoch=1)
        say(ready=True, shares=ranks.native is not None)
        for step, line in enumerate(sys.stdin, 1):
            match line.split():
                case ["exit"]:
                    os._exit(1)
                case ["hang"]:
                    threading.Event().wait()
                case ["fail"]:
                    try:
                        with ranks.step(step):
                            raise OutOfMemoryError("The memory is full.")
                    except OutOfMemoryError as error:
                        say(error=type(error).__name__)
                case ids:
                    compute(stage, ranks, step, list(map(int, ids)))


def stored(folder: Path) -> list[StoredTensor]:
    """Where the test says that tensors are: to look itself, it would import `transformers`."""
    entries = json.loads((folder / "tensors.json").read_text())
    return [
        StoredTensor(**entry | {"path": Path(entry["path"]), "shape": tuple(entry["shape"])})
        for entry in entries
    ]


def compute(stage: Stage, ranks: Ranks, step: int, ids: list[int]) -> None:
    position = stage.position(SESSION)
    inputs = torch.tensor(ids, dtype=torch.int32)
    try:
        with ranks.step(step):
            output = stage.forward(SESSION, inputs, epoch=1, step=step, position=position)
    except Exception as error:  # noqa: BLE001 - the test reads it
        traceback.print_exc()
        say(error=type(error).__name__)
        return
    assert output.hidden is not None
    hidden = output.hidden.tensor.contiguous()
    digest = hashlib.sha256(hidden.numpy().tobytes()).hexdigest()
    say(digest=digest, hidden=hidden[-1].tolist())


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    place, meeting, number, count, by = sys.argv[1:]
    main(Path(place), Path(meeting), int(number), int(count), by)
