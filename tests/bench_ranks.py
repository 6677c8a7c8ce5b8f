"""What ranks gain: `python tests/bench_ranks.py` (Linux). Not a test.

    --shape qwen-0.5b     one of `model/shapes/`, with random weights
    --layers 8            of it
    --scheme int4
    --rounds 5            of all, in turns; medians count
    --quantile 0.1        of a round's steps: less than 0.5 where others use the computer too
    --nice -10            than they are (root): two ranks that wait for each other suffer more than one process does
    --exchange shared     in memory; `links`: over their connections; `none`: ranks do not sum, which shows what sums take

Two processes of one core each compute as ranks what one process of one core computes alone. Beside it, how fast one
core and two cores read memory: no more than their ratio can be gained where a token's time is that of reading weights.
All are measured in turns; figures are medians, and ratios those of one turn. Several exchanges may be named, with commas.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from joined_ranks import make_home

CHUNK = 128  # tokens of a prompt
DECODED = 100  # tokens of a round
READ = 256 << 20  # bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="qwen-0.5b")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--scheme", default="int4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--quantile", type=float, default=0.5)
    parser.add_argument("--exchange", default="shared,links,none")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        compute(given)
        return
    turns = [
        {"one": measured(1, "none")}
        | {each: measured(2, each) for each in given.exchange.split(",")}
        for _ in range(given.rounds)
    ]
    for what, unit in (("decode", "ms/token"), ("prefill", "ms/chunk"), ("read", "GB/s")):
        for name in turns[0]:
            ratios = [turn["one"][what] / turn[name][what] for turn in turns]
            if what == "read":
                ratios = [1 / ratio for ratio in ratios]
            median = statistics.median(turn[name][what] for turn in turns)
            ratio = statistics.median(ratios)
            print(
                f"{what:8} {name:8}{median:>10.2f} {unit:9}{ratio:>6.2f}  {min(ratios):.2f} to {max(ratios):.2f}"
            )


def measured(world: int, exchange: str) -> dict[str, float]:
    """Times of a group: those of its slowest rank; and what all read together."""
    with tempfile.TemporaryDirectory() as folder:
        make_home(Path(folder))
        command = [sys.executable, *sys.argv, "--exchange", exchange, "--rank"]
        processes = [
            subprocess.Popen([*command, f"{rank} {world} {folder}"], stdout=subprocess.PIPE)
            for rank in range(world)
        ]
        results = [json.loads(process.communicate()[0]) for process in processes]
    slowest: dict[str, float] = {
        what: max(one[what] for one in results) for what in ("decode", "prefill")
    }
    return {**slowest, "read": sum(one["read"] for one in results)}


def compute(given: argparse.Namespace) -> None:
    """Be one rank, on a core of its own."""
    rank, world, folder = given.rank.split()
    rank, world = int(rank), int(world)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    import torch
    from joined_ranks import joined

    from potluck.engine.loading.weights import random_weights
    from potluck.engine.stage import Stage
    from potluck.ids import SessionId
    from potluck.model.config import ModelConfig
    from potluck.model.shapes.table import SHAPES
    from potluck.model.shares import Share, rank_config

    torch.set_num_threads(1)
    os.nice(given.nice)
    device, session = torch.device("cpu"), SessionId("chat")
    whole = ModelConfig.from_dict(SHAPES[given.shape])
    config = rank_config(whole, Share(rank=rank, parts=(1,) * world), given.scheme)
    weights = random_weights(
        config, range(given.layers), embedding=False, head=False, scheme=given.scheme, device=device
    )
    joining = (
        joined(Path(folder), rank, world, shares=given.exchange == "shared")
        if world > 1
        else nullcontext()
    )
    with joining as ranks:
        exchange = ranks if given.exchange != "none" else None
        numbers = iter(range(1, 1 << 30))

        def together(_: object) -> AbstractContextManager[None]:
            return nullcontext() if exchange is None else exchange.step(next(numbers))

        stage = Stage(
            weights, context=1024, cache_budget=1 << 30, exchange=exchange, together=together
        )
        stage.open(session, epoch=0)
        steps = 0

        def begin_together() -> None:
            if ranks is not None:
                with ranks.step(next(numbers)):
                    ranks.sum(torch.zeros(1, 1))

        def step(tokens: int) -> None:
            nonlocal steps
            if tokens > 1:
                stage.trim(session, 0, epoch=0)
            rows = torch.randn(tokens, config.width, generator=torch.Generator().manual_seed(steps))
            stage.forward(session, rows, epoch=0, step=steps, position=stage.position(session))
            steps += 1

        def timed(tokens: int, times: int) -> float:
            """Milliseconds of one of so many steps; all ranks begin together."""
            step(tokens)
            begin_together()
            took = sorted(_ms(lambda: step(tokens)) for _ in range(times))
            return took[int(given.quantile * times)]

        memory = torch.ones(READ // 8, dtype=torch.int64)
        prefill, decode = timed(CHUNK, 10), timed(1, DECODED)
        begin_together()
        read = READ / statistics.median(_ms(lambda: memory.sum()) for _ in range(5)) / 1e6
        print(json.dumps({"decode": decode, "prefill": prefill, "read": read}))


def _ms(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


if __name__ == "__main__":
    main()
