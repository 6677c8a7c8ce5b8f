"""What it gains that another computer reads prompts, and that a model is held twice: `python tests/bench_apart.py` (Linux). Not a test.

    --prompts 500,2000,8000   tokens
    --tokens 48               of an answer
    --share 0.25              of a core that the computer has which answers; root, with cgroups
    --hidden 512 --layers 8   of a random Llama model
    --scheme int8
    --clients 8               of two replicas, with a core each

Two whole nodes in one process, with a stage process each on a core of its own: Desk answers and has a share of its core, Laptop
reads. Between them is loopback, over TLS: what a network would add is not shown. Beside each time to a first token
stands what the planner says for the same plan, with the measurements of this run. The driver, which is Python, has
no core of its own.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("core", "app", "tests/support")]

import msgspec  # noqa: E402
import pytest  # noqa: E402
from model_folders import CONFIG, make_folder  # noqa: E402
from whole_nodes import eventually, find_in_memory, folders_of, join, running  # noqa: E402

from potluck.api.values.schema import PlanRequest, RoleRequest  # noqa: E402
from potluck.cluster.driver.generation import Generator  # noqa: E402
from potluck.cluster.driver.token import Usage  # noqa: E402
from potluck.cluster.master.planned import Planned, sizes_of  # noqa: E402
from potluck.cluster.node import Node  # noqa: E402
from potluck.plan.apart import first_token_ms  # noqa: E402
from potluck.plan.shape import shape_of  # noqa: E402
from potluck.settings import load_settings, save_settings  # noqa: E402
from potluck.wire.activation_messages import Sampling  # noqa: E402

CGROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", default="500,2000,8000")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--scheme", default="int8")
    parser.add_argument("--clients", type=int, default=8)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        base = Path(folder)
        model = make_folder(base / "model", config=config_of(given))
        find_in_memory(patch, model)
        asyncio.run(measure(base, model, given))


def config_of(given: argparse.Namespace) -> dict[str, object]:
    return {
        **CONFIG,
        "hidden_size": given.hidden,
        "intermediate_size": 3 * given.hidden,
        "num_hidden_layers": given.layers,
        "num_attention_heads": given.hidden // 64,
        "num_key_value_heads": max(1, given.hidden // 256),
        "vocab_size": 8192,
        "max_position_embeddings": 16384,
    }


@asynccontextmanager
async def home(base: Path) -> AsyncGenerator[Node, None]:
    """A desk, and a laptop of its home, each with one thread on a core of its own."""
    folders = [folders_of(base, name) for name in ("Desk", "Laptop")]
    for each in folders:
        settings = load_settings(each.settings_file)
        save_settings(each.settings_file, msgspec.structs.replace(settings, threads=1))
    async with running(folders[0]) as desk, running(folders[1]) as laptop:
        await laptop.backend.set_role(RoleRequest(worker=True))
        await join(desk, laptop)
        await eventually(desk, lambda: all(c.devices for c in desk.membership.connected()))
        for core, node in enumerate((desk, laptop)):
            await eventually(node, node.processes.running)
            pin(node, core % (os.cpu_count() or 1))
        yield desk


def pin(node: Node, core: int) -> None:
    """Keep all threads of a node's stage process on one core."""
    for thread in Path(f"/proc/{pid_of(node)}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def pid_of(node: Node) -> int:
    process = node.processes.running()[0]._process
    assert process is not None
    return process.pid


@asynccontextmanager
async def slowed(node: Node, share: float) -> AsyncGenerator[None, None]:
    """Let the stage process of a node have a share of a core."""
    old = (CGROUPS / "cpu").is_dir()
    group = (CGROUPS / "cpu" if old else CGROUPS) / f"potluck-bench-{os.getpid()}"
    quota = int(share * PERIOD_US)
    group.mkdir()
    try:
        if old:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        (group / "cgroup.procs").write_text(str(pid_of(node)))
        yield
    finally:
        (group.parent / "cgroup.procs").write_text(str(pid_of(node)))
        with suppress(OSError):
            group.rmdir()


async def measure(base: Path, model: Path, given: argparse.Namespace) -> None:
    lengths = [int(word) for word in given.prompts.split(",")]
    request = PlanRequest(
        model=str(model),
        scheme=given.scheme,
        context=max(lengths) + given.tokens + 8,
        layers=(("Desk", given.layers),),
    )
    async with home(base) as desk:
        say(
            f"Desk has {given.share:.0%} of a core: ms to the first token (planned), tokens/s after it"
        )
        async with slowed(desk, given.share):
            await answers(desk, "alone", request, lengths, given.tokens)
            apart = msgspec.structs.replace(request, prefill=("Laptop",))
            await answers(desk, "read by Laptop", apart, lengths, given.tokens)
        once, twice = [await together(desk, request, given, replicas=n) for n in (1, 2)]
        say(
            f"{given.clients} clients: {once:.1f} tokens/s held once, {twice:.1f} twice,"
            f" {twice / once:.2f} times"
        )
        await desk.backend.unload()


def say(text: str) -> None:
    print(text, flush=True)


async def answers(
    node: Node, how: str, request: PlanRequest, lengths: Sequence[int], tokens: int
) -> None:
    """Of an answer to each prompt, print ms to the first token, as planned, and tokens per second after it."""
    await node.master.load(request)
    deployment, generator = await node.master.ready(request)
    if request.prefill:
        await eventually(node, lambda: node.master.readers.is_ready)
    planned = deployment.planned
    await answer(generator, planned, 64, 4)  # all code has been used once
    for length in lengths:
        first_s, rate = await answer(generator, planned, length, tokens)
        reading = planned.reading
        is_read = reading is not None and length >= reading.least_tokens
        plan = reading.plan if reading is not None and is_read else None
        links = node.master.measurements.links.known()
        config, scheme, context = planned.model.config, planned.scheme, planned.context
        shape = shape_of(config, scheme, context=context, cache=planned.cache)
        sizes = sizes_of(config, scheme, planned.cache, shape, links, context)
        expected = first_token_ms(sizes, planned.plan, plan, length)
        say(f"{length:6d} tokens {how}: {1000 * first_s:7.0f} ({expected:7.0f}) {rate:6.1f}")


async def answer(
    generator: Generator, planned: Planned, length: int, tokens: int
) -> tuple[float, float]:
    """Seconds to the first token, and tokens per second after it."""
    vocabulary = planned.model.config.vocab_size
    prompt = [random.randrange(vocabulary) for _ in range(length)]
    began = time.perf_counter()
    first = last = 0.0
    stream = generator.tokens(prompt, Sampling(), limit=tokens, usage=Usage())
    async with aclosing(stream) as given:
        async for _ in given:
            last = time.perf_counter()
            first = first or last
    return first - began, (tokens - 1) / (last - first)


async def together(
    node: Node, request: PlanRequest, given: argparse.Namespace, *, replicas: int
) -> float:
    """Tokens per second of all clients, who each ask again as soon as they are answered."""
    layers = (("Desk", given.layers),) if replicas == 1 else None
    request = msgspec.structs.replace(request, replicas=replicas, layers=layers, context=1024)
    await node.master.load(request)
    deployment, generator = await node.master.ready(request)
    await node.master.replicas.settled()

    async def client() -> None:
        for _ in range(2):
            await answer(generator, deployment.planned, 48, given.tokens)

    await answer(generator, deployment.planned, 48, 4)
    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(given.clients)))
    return 2 * given.clients * given.tokens / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
