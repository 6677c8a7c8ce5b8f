"""How long ranks wait for each other on this computer: `python tests/bench_rank_links.py`. Not a test.

Two processes sum rows over TLS on loopback, as two ranks do twice in each layer: 8, 16 and 32 KiB of one
token's hidden states in f32 (2048, 4096 and 8192 values), and 2 MiB of a chunk. Measured is one sum after the
other, without computing between them.
"""

import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import torch

from potluck.cluster.stage.ranks import Links, Ranks
from potluck.ids import HomeId
from potluck.net.identity import Identity
from potluck.net.link_kind import step_links
from potluck.net.listener import Listener
from potluck.net.reactor import Reactor
from potluck.net.step_link import StepLink
from potluck.net.transport import dial_steps
from potluck.wire.messages import Address, NodeInfo

SUMS = {2048: 3000, 4096: 3000, 8192: 3000, 512 << 10: 200}  # values of a row: how many sums
WARM_UP = 50


def info(identity: Identity) -> NodeInfo:
    return NodeInfo(node_id=identity.node_id, name="bench", version="0", os="", arch="")


def add_up(rank: int, link: StepLink) -> None:
    ranks = Ranks()
    ranks.join(rank, Links(sums={1 - rank: link}, steps=()))
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
                f"a sum of {4 * values / 1024:.0f} KiB: {median:.0f} µs median, {p95:.0f} µs p95\n"
            )


def serve(folder: Path, pipe: Pipe) -> None:
    async def main() -> None:
        identity = Identity.load(folder)
        links: asyncio.Queue[StepLink] = asyncio.Queue()

        async def on_link(link: StepLink) -> None:
            links.put_nowait(link)
            await link.wait_closed()

        kind = step_links(Reactor())
        async with Listener(
            identity, me=lambda: info(identity), on_link=on_link, kind=kind, host="127.0.0.1"
        ) as listener:
            pipe.send(listener.port)
            await asyncio.to_thread(add_up, 1, await links.get())

    asyncio.run(main())


async def measure(master: Identity, worker: Identity, home: HomeId, port: int) -> None:
    link = await dial_steps(
        [Address(host="127.0.0.1", port=port)],
        master,
        home=home,
        peer=worker.node_id,
        me=info(master),
        reactor=Reactor(),
        purpose="ranks",
    )
    await asyncio.to_thread(add_up, 0, link)
    link.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        master = Identity.load_or_create(Path(folder) / "master", "master")
        worker = Identity.load_or_create(Path(folder) / "worker", "worker")
        home = master.create_home("bench")
        member = master.issue(worker.certificate_der)
        worker.add_home(
            ca_pem=home.ca_pem, certificate_pem=member, name="bench", master=master.node_id
        )
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        server = context.Process(target=serve, args=(worker.folder, theirs))
        server.start()
        asyncio.run(measure(master, worker, home.home_id, ours.recv()))
        server.join()


if __name__ == "__main__":
    main()
