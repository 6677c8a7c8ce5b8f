"""What ranks gain: `python tests/bench_ranks.py` (Linux). Not a test.

    --shape qwen-0.5b     one of `model/shapes.py`, with random weights
    --layers 8            of it
    --scheme int4
    --rounds 5            of all, in turns; medians count
    --exchange gloo       or `none`: ranks do not sum, which shows what sums take

Two processes of one core each compute as ranks what one process of one core computes alone. Beside it, how fast one
core and two cores read memory: no more than their ratio can be gained where a token's time is that of reading weights.
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
from pathlib import Path

CHUNK = 128  # tokens of a prompt
DECODED = 24  # tokens of a round
READ = 256 << 20  # bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="qwen-0.5b")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--scheme", default="int4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--exchange", choices=["gloo", "none"], default="gloo")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        compute(given)
        return
    found: dict[str, list[dict[str, float]]] = {"one": [], "two": []}
    for _ in range(given.rounds):
        for name, world in (("one", 1), ("two", 2)):
            found[name].append(measured(world))
    one, two = (
        {what: statistics.median(run[what] for run in runs) for what in runs[0]}
        for runs in found.values()
    )
    print(f"{'':10}{'one core':>12}{'two ranks':>12}{'ratio':>8}")
    for what, unit in (("decode", "ms/token"), ("prefill", "ms/chunk"), ("read", "GB/s")):
        ratio = two[what] / one[what] if what == "read" else one[what] / two[what]
        print(f"{what:10}{one[what]:>12.2f}{two[what]:>12.2f}{ratio:>8.2f}  {unit}")


def measured(world: int) -> dict[str, float]:
    """Times of a group: those of its slowest rank; and what all read together."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *sys.argv, "--rank"]
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

    from potluck.engine.collective import CollectiveExchange
    from potluck.engine.stage import Stage
    from potluck.engine.weights import random_weights
    from potluck.ids import SessionId
    from potluck.model.config import ModelConfig
    from potluck.model.shapes import SHAPES
    from potluck.model.shares import Share, rank_config

    torch.set_num_threads(1)
    device, session = torch.device("cpu"), SessionId("chat")
    exchange = CollectiveExchange(Path(folder) / "meeting", rank, world, device, timeout_s=60)
    whole = ModelConfig.from_dict(SHAPES[given.shape])
    config = rank_config(whole, Share(rank=rank, parts=(1,) * world), given.scheme)
    weights = random_weights(
        config, range(given.layers), embedding=False, head=False, scheme=given.scheme, device=device
    )
    stage = Stage(
        weights, context=1024, cache_budget=1 << 30,
        exchange=exchange if world > 1 and given.exchange == "gloo" else None,
    )  # fmt: skip
    stage.open(session, epoch=0)
    steps = 0

    def step(tokens: int) -> None:
        nonlocal steps
        rows = torch.randn(tokens, config.width, generator=torch.Generator().manual_seed(steps))
        stage.forward(session, rows, epoch=0, step=steps, position=stage.position(session))
        steps += 1

    def timed(tokens: int, times: int) -> float:
        """Milliseconds of one of so many steps, the median; all ranks begin together."""
        step(tokens)
        exchange.sum(torch.zeros(1, 1))
        return statistics.median(_ms(lambda: step(tokens)) for _ in range(times))

    memory = torch.ones(READ // 8, dtype=torch.int64)
    prefill, decode = timed(CHUNK, 2), timed(1, DECODED)
    exchange.sum(torch.zeros(1, 1))
    read = READ / statistics.median(_ms(lambda: memory.sum()) for _ in range(5)) / 1e6
    print(json.dumps({"decode": decode, "prefill": prefill, "read": read}))


def _ms(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


if __name__ == "__main__":
    main()
