"""How fast a link is on this computer: `python tests/bench_transport.py`. Not a test.

Two processes talk TLS over loopback. Measured are the round trip of a decode step (8 KiB of hidden
states one way, a result back) and the rate of 4 MiB chunks in one direction.
"""

import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from potluck.ids import HomeId
from potluck.net.identity import Identity
from potluck.net.transport import Link, Listener, dial
from potluck.wire.messages import (
    Address,
    Chunk,
    Forward,
    Message,
    NodeInfo,
    Purpose,
    Result,
    Stored,
    TensorHeader,
)

STEPS = 4000
WARM_UP = 500
HIDDEN = bytes(8192)  # the hidden states of one token: 4096 values in BF16
CHUNK = bytes(4 << 20)
TOTAL = 1 << 30
DIGEST = "ab" * 32


def info(identity: Identity) -> NodeInfo:
    return NodeInfo(node_id=identity.node_id, name="bench", version="0", os="", arch="")


def result(message: Forward) -> Result:
    return Result(epoch=1, session="s", step=message.step, position=message.step + 1, token_id=5)


def serve(folder: Path, pipe: Pipe) -> None:
    async def on_link(link: Link) -> None:
        def answer(message: Message, payload: memoryview) -> None:
            assert isinstance(message, Forward)
            link.send_nowait(result(message))

        if link.purpose == "activations":
            link.deliver_to(answer)
            await link.wait_closed()
        while True:
            message, payload = await link.receive()
            assert isinstance(message, Chunk)
            if message.offset + payload.nbytes == message.total:
                await link.send(Stored(digest=message.digest))

    async def main() -> None:
        identity = Identity.load(folder)
        me = info(identity)
        async with Listener(identity, me=lambda: me, on_link=on_link, host="127.0.0.1") as listener:
            pipe.send(listener.port)
            await asyncio.to_thread(pipe.recv)

    asyncio.run(main())


async def measure(master: Identity, worker: Identity, home: HomeId, port: int) -> None:
    async def connect(purpose: Purpose) -> Link:
        return await dial(
            [Address(host="127.0.0.1", port=port)],
            master,
            home=home,
            peer=worker.node_id,
            purpose=purpose,
            me=info(master),
        )

    link = await connect("activations")
    took: list[float] = []
    for step in range(STEPS):
        tensor = TensorHeader(dtype="BF16", shape=(1, 4096))
        began = time.perf_counter()
        message = Forward(epoch=1, session="s", step=step, position=step, tensor=tensor)
        link.send_nowait(message, HIDDEN)
        await link.receive()
        took.append(time.perf_counter() - began)
    link.close()
    took = sorted(took[WARM_UP:])
    median, p95 = statistics.median(took) * 1e6, took[int(len(took) * 0.95)] * 1e6
    sys.stdout.write(f"round trip of a step: {median:.0f} µs median, {p95:.0f} µs p95\n")

    link = await connect("weights")
    began = time.perf_counter()
    for offset in range(0, TOTAL, len(CHUNK)):
        await link.send(Chunk(digest=DIGEST, offset=offset, total=TOTAL), CHUNK)
    await link.receive()
    rate = TOTAL / (time.perf_counter() - began) / 1e6
    sys.stdout.write(f"one direction, 4 MiB chunks: {rate:.0f} MB/s\n")
    link.close()
    await link.wait_closed()


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
        ours.send("stop")
        server.join()


if __name__ == "__main__":
    main()
