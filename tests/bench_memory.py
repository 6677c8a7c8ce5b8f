"""Memory of stage processes beside weights and caches: `python tests/bench_memory.py`. No test.

    --shape llama-1b          the model; its two halves are two stages, each in a process of its own
    --scheme int4             the scheme of the random weights
    --chunk 128               tokens of a prompt in one step, as in a plan of two such stages

It runs on Linux only. Figures are MB. "first" and "last" are the resident memory of the two stage
processes, less weights and caches. "files" is the part of it that is pages of files (the code of
torch and LLVM), which the system takes back when another program needs memory. "peak" is the peak
since the line before.

Llama-3.2-1B in int4 on an AMD EPYC of family 26 (Zen 5, 2 cores), Linux, torch 2.13 for CPUs, llvmlite 0.50:

                          first, files, peak   last, files, peak
    started                    250    90   250     250    90   250
    profiled                   356   174   659     356   174   659
    loaded                     361   175   366     362   175   386
    16 tokens read             364   177   366     363   175   366
        and tokens decoded     364   177   364     363   175   363
    512 tokens read            368   177   386     367   175   385
        and tokens decoded     369   177   369     368   175   368
    4096 tokens read           370   177   392     370   175   393
        and tokens decoded     371   177   379     370   175   378
    512 tokens read            371   177   391     370   175   389
        and tokens decoded     371   177   372     370   175   371

At rest, the other schemes take the same, at most 376; the peaks of int8 and int4-offset are 10 to
15 higher, and so are those of chunks of 256. `import torch` is 229 of it and LLVM 94: 76 are its
code, and 18 are what compiling leaves in the heaps. While a prompt is read, its scratch memory
takes 20 to 30 more. Giving that back takes 4 ms of one core; getting it again for the next prompt
takes 8 ms.
"""

import argparse
import asyncio
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

import psutil
import torch

sys.path.insert(0, str(Path(__file__).parent / "support"))

from stage_nodes import Driver, StageNode

from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.token import Usage
from potluck.cluster.processes.messages import LoadStage
from potluck.engine.caches.cache_pool import CachePool
from potluck.engine.device import cache_dtype
from potluck.ids import SessionId
from potluck.model.caches import CacheSizes
from potluck.model.config import ModelConfig
from potluck.model.layers import owned_caches
from potluck.model.schemes import Scheme
from potluck.model.shapes.table import DEFAULT_SHAPE, SHAPES
from potluck.wire.activation_messages import Sampling
from potluck.wire.measuring_messages import Profile

CONTEXT = 8192
PROMPTS = (16, 512, 4096, 512)
DECODED = 32
PROFILED = 128  # tokens of a chunk
SETTLED_S = 0.5  # seconds until a stage has finished the work that follows its answer


@dataclass(slots=True)
class Stage:
    """One of the two stages. `pool` gets the same calls as the stage's own and tells its size."""

    node: StageNode
    process: psutil.Process
    layers: tuple[int, int]
    pool: CachePool
    weights: int = 0  # bytes

    def report(self) -> str:
        """Its memory now, the part that is files, and the peak since the last call, in MB."""
        folder = Path(f"/proc/{self.process.pid}")
        text = (folder / "smaps_rollup").read_text() + (folder / "status").read_text()
        kib = {name: int(number) for name, number in re.findall(r"(\w+):\s+(\d+) kB", text)}
        (folder / "clear_refs").write_text("5")  # resets the peak
        ours = self.weights + self.pool.nbytes
        rss, peak = (1024 * kib[name] - ours for name in ("Rss", "VmHWM"))
        files = 1024 * (kib["Rss"] - kib["Anonymous"])
        return f"{rss / 1e6:5.0f} {files / 1e6:5.0f} {peak / 1e6:5.0f}"


class Bench:
    """Two stages of a model, measured from the start of their processes to long prompts."""

    def __init__(self, shape: str, scheme: Scheme, chunk: int) -> None:
        self._raw = dict(SHAPES[shape])
        self._chunk = chunk
        self._scheme: Scheme = scheme
        self._config = ModelConfig.from_dict(self._raw)
        self._stages: list[Stage] = []

    async def run(self, folder: Path) -> None:
        """Measure, and print a line for each state."""
        desk = StageNode("first", folder / "first")
        half, whole = self._config.num_layers // 2, self._config.num_layers
        for node, layers in (
            (desk, (0, half)),
            (StageNode("last", folder / "last", desk.identity), (half, whole)),
        ):
            pool = self._pool(range(*layers))
            self._stages.append(Stage(node, await node.start(), layers, pool))
        try:
            self._print("started")
            for stage in self._stages:
                await stage.node.handle.profile(
                    Profile(config=self._raw, scheme=self._scheme, tokens=PROFILED)
                )
            self._print("profiled")
            for stage in reversed(self._stages):
                await self._load(stage)
            self._print("loaded")
            async with Driver(desk, *(stage.node for stage in self._stages)) as pipeline:
                generator = Generator()
                generator.attach(pipeline, context=CONTEXT, chunk_tokens=lambda _: self._chunk)
                for number, tokens in enumerate(PROMPTS):
                    await self._answer(generator, number, tokens)
        finally:
            for stage in self._stages:
                await stage.node.handle.stop()

    def _print(self, state: str) -> None:
        print(f"    {state:22}", *(stage.report() for stage in self._stages), sep="   ", flush=True)

    def _pool(self, layers: range) -> CachePool:
        dtype = cache_dtype(self._scheme, torch.device("cpu"))
        sizes = CacheSizes(number_bytes=dtype.itemsize)
        return CachePool(
            owned_caches([self._config.layers[layer] for layer in layers], sizes),
            dtype=dtype,
            device=torch.device("meta"),
            context=CONTEXT,
            budget=1 << 50,
        )

    async def _load(self, stage: Stage) -> None:
        first, last = self._stages
        loaded, _ = await stage.node.load(
            LoadStage(
                home=stage.node.home,
                epoch=1,
                model_id="ab" * 32,
                config=self._raw,
                scheme=self._scheme,
                layers=stage.layers,
                embedding=stage is first,
                head=stage is last,
                context=CONTEXT,
                tensors=(),
                seed=0,
                next_hop=last.node.hop if stage is first else None,
                previous=first.node.identity.node_id if stage is last else None,
            )
        )
        stage.weights = loaded.memory_bytes

    async def _answer(self, generator: Generator, number: int, tokens: int) -> None:
        """Answer a prompt in a new session. No two prompts begin alike, so no cache is reused."""
        prompt = [(number + index) % self._config.vocab_size for index in range(tokens)]
        name = SessionId(str(number))
        for stage in self._stages:
            stage.pool.open(name)
        for limit, state in ((1, f"{tokens} tokens read"), (DECODED, "    and tokens decoded")):
            for stage in self._stages:
                stage.pool.reserve(name, len(prompt) + limit - 1)
            stream = generator.tokens(prompt, Sampling(), limit=limit, usage=Usage())
            prompt += [token.token_id async for token in stream]
            await asyncio.sleep(SETTLED_S)
            self._print(state)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default=DEFAULT_SHAPE, choices=SHAPES)
    parser.add_argument("--scheme", default="int4", choices=get_args(Scheme))
    parser.add_argument("--chunk", default=128, type=int)
    given = parser.parse_args(arguments)
    scheme = cast("Scheme", given.scheme)
    print(f"    {'MB beside weights':22}   first, files, peak   last, files, peak")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(Bench(given.shape, scheme, given.chunk).run(Path(folder)))


if __name__ == "__main__":
    main()
