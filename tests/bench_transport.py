"""How fast links are on this computer: `python tests/bench_transport.py`. Not a test.

Two processes talk TLS over loopback. Measured is a token's way to a stage and back: 8 KiB of hidden
states there, a token id back. Once over a step link, and once over an ordinary link, where an event loop
hands each step to the thread that computes and takes its result back. Both also with 64 MiB read for each
step, as weights are, which leaves none of the code in the processor's caches. The time of reading itself
is subtracted. `bench_transfer.py` measures weights.
"""

import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import numpy as np

from potluck.ids import HomeId
from potluck.net.identity import Identity
from potluck.net.link import Link
from potluck.net.link_kind import step_links
from potluck.net.listener import Listener
from potluck.net.reactor import ReactorThread
from potluck.net.step_link import StepLink
from potluck.net.transport import dial, dial_steps
from potluck.wire.activation_messages import Forward, Result, TensorHeader
from potluck.wire.messages import Address, Message, NodeInfo

STEPS = {"warm": 3000, "cold": 300}
WARM_UP = 50
HIDDEN = bytes(8192)  # the hidden states of one token: 4096 values in BF16
TENSOR = TensorHeader(dtype="BF16", shape=(1, 4096))
WEIGHTS = np.ones(8 << 20, np.uint64)  # 64 MiB


def info(identity: Identity) -> NodeInfo:
    return NodeInfo(node_id=identity.node_id, name="bench", version="0", os="", arch="")


# --- the stage


def compute(message: Message) -> Result:
    assert isinstance(message, Forward)
    began = time.perf_counter()
    if message.session == "cold":
        WEIGHTS.sum()
    ms = (time.perf_counter() - began) * 1e3
    position = message.position + message.tensor.shape[0]
    return Result(
        epoch=1, session="s", step=message.step, position=position, token_id=5, compute_ms=(ms,)
    )


async def serve_link(link: Link) -> None:
    with ThreadPoolExecutor(1) as thread:
        while True:
            message, _ = await link.receive()
            result = await asyncio.get_running_loop().run_in_executor(thread, compute, message)
            link.send_nowait(result)


async def serve_step_link(link: StepLink) -> None:
    link.deliver_to(lambda message, _: link.send_nowait(compute(message)))
    await link.wait_closed()


def serve(folder: Path, pipe: Pipe) -> None:
    async def main() -> None:
        identity = Identity.load(folder)
        thread = ReactorThread("stage")
        thread.start()
        kind = step_links(thread.reactor)

        def me() -> NodeInfo:
            return info(identity)

        async with AsyncExitStack() as stack:
            links = Listener(identity, me=me, on_link=serve_link, host="127.0.0.1")
            steps = Listener(identity, me=me, on_link=serve_step_link, kind=kind, host="127.0.0.1")
            for listener in (links, steps):
                await stack.enter_async_context(listener)
            pipe.send((links.port, steps.port))
            await asyncio.to_thread(pipe.recv)
        thread.stop()

    asyncio.run(main())


# --- the driver


class Clock:
    """Makes the steps of one series, and notes how long each was on its way."""

    def __init__(self, session: str) -> None:
        self.session, self.steps = session, STEPS[session]
        self.took_us: list[float] = []
        self._began = 0.0

    def step(self) -> Forward:
        number = len(self.took_us)
        self._began = time.perf_counter()
        return Forward(epoch=1, session=self.session, step=number, position=number, tensor=TENSOR)

    def arrived(self, message: Message) -> bool:
        """Note the time of a result; whether it was the last one."""
        seconds = time.perf_counter() - self._began
        assert isinstance(message, Result)
        self.took_us.append(seconds * 1e6 - message.compute_ms[0] * 1e3)
        return len(self.took_us) >= self.steps

    def report(self, what: str) -> None:
        took = sorted(self.took_us[WARM_UP:])
        median, p95 = statistics.median(took), took[int(len(took) * 0.95)]
        sys.stdout.write(
            f"a token over {what}, caches {self.session}: {median:.0f} µs median, {p95:.0f} µs p95\n"
        )


async def over_link(link: Link, clock: Clock) -> None:
    is_over = False
    while not is_over:
        link.send_nowait(clock.step(), HIDDEN)
        is_over = clock.arrived((await link.receive())[0])


def over_step_link(link: StepLink, clock: Clock) -> None:
    is_over = threading.Event()

    def arrived(message: Message, _: memoryview) -> None:
        if clock.arrived(message):
            is_over.set()
        else:
            link.send_nowait(clock.step(), HIDDEN)

    link.deliver_to(arrived)
    link.send_nowait(clock.step(), HIDDEN)
    is_over.wait()


async def measure(master: Identity, worker: Identity, home: HomeId, ports: tuple[int, int]) -> None:
    links, steps = ([Address(host="127.0.0.1", port=port)] for port in ports)
    peer, me = worker.node_id, info(master)

    thread = ReactorThread("driver")
    thread.start()
    for session in STEPS:
        clock = Clock(session)
        step_link = await dial_steps(
            steps, master, home=home, peer=peer, me=me, reactor=thread.reactor
        )
        await asyncio.to_thread(over_step_link, step_link, clock)
        step_link.close()
        clock.report("a step link")
        clock = Clock(session)
        link = await dial(links, master, home=home, peer=peer, purpose="activations", me=me)
        await over_link(link, clock)
        link.close()
        clock.report("an ordinary link")
    thread.stop()


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
