"""How long ranks wait for each other on this computer: `python tests/bench_rank_links.py`. Not a test.

Two processes sum rows, as two ranks do twice in each layer: 8, 16 and 32 KiB of one token's hidden states in f32
(2048, 4096 and 8192 values), and 2 MiB of a chunk; over TLS on loopback, and in memory that they share. Measured is one
sum after the other, without computing between them, and on Linux each process has a core of its own.
"""

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from joined_ranks import joined, make_home

SUMS = {2048: 3000, 4096: 3000, 8192: 3000, 512 << 10: 200}  # values of a row: how many sums
WARM_UP = 50


def add_up(rank: int, folder: Path, shares: bool) -> None:
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    with joined(folder, rank, 2, shares=shares) as ranks:
        for step, (values, count) in enumerate(SUMS.items(), 1):
            rows = torch.full((1, values), float(rank + 1))
            took: list[float] = []
            with ranks.step(step):
                for _ in range(count):
                    began = time.perf_counter()
                    ranks.sum(rows)
                    took.append((time.perf_counter() - began) * 1e6)
                    assert rows[0, -1] == 3.0
                    rows.fill_(rank + 1)
            took = sorted(took[WARM_UP:])
            if rank == 0:
                median, p95 = statistics.median(took), took[int(len(took) * 0.95)]
                sys.stdout.write(
                    f"{'memory' if shares else 'links':8} a sum of {4 * values / 1024:.0f} KiB:"
                    f" {median:.1f} µs median, {p95:.1f} µs p95\n"
                )


def main() -> None:
    context = multiprocessing.get_context("spawn")
    for shares in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            make_home(Path(folder))
            processes = [
                context.Process(target=add_up, args=(rank, Path(folder), shares))
                for rank in range(2)
            ]
            for process in processes:
                process.start()
            for process in processes:
                process.join()


if __name__ == "__main__":
    main()
