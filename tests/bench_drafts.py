"""Tokens a second with and without guesses at tokens: `python tests/bench_drafts.py`. Not a test.

    --shapes llama-1b,…   by the names that `potluck bench` has
    --scheme int4         how weights are held
    --hops 0,5            ms that a message takes from one to the next
    --stages 1            in which the model is cut
    --tokens 160          of an answer
    --rounds 3            whose median counts
    --threads 1           threads of the kernels

The weights are random, so what the head chooses is replaced by a text that is given; everything is computed all the same,
by the stages and the driver of the program, in one process. The texts: "edit" writes a source file of this project again in
which names were changed, "new" writes another file than the one that was asked about, and "wrong" is made so that
each guess is wrong. Words, spaces and signs are the tokens.
"""

import argparse
import asyncio
import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

import potluck
from potluck.cluster.driver.drafts import GRAM
from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.pipeline import Pipeline
from potluck.cluster.driver.token import Usage
from potluck.cluster.stage.steps import SessionMessage, apply
from potluck.engine.loading.weights import random_weights
from potluck.engine.sampling.sampler import Choice
from potluck.engine.stage import Stage
from potluck.model.config import ModelConfig
from potluck.model.shapes.table import SHAPES
from potluck.wire.activation_messages import Result, Sampling
from potluck.wire.messages import Message, NodeInfo

CPU = torch.device("cpu")
CONTEXT = 8192
SOURCES = Path(potluck.__file__).parent


class ScriptedChain:
    """Stages in a thread, as both ends of a pipeline. What is chosen stands in `script`, from the first position of an answer on."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages, self.hop_s = stages, 0.0
        self._waiting: queue.SimpleQueue[tuple[Message, bytes] | None] = queue.SimpleQueue()
        self._receiver: Callable[[Message, memoryview], None] = lambda *_: None
        self.script: Sequence[int] = ()
        self.start, self.steps = 0, 0
        head = stages[-1].head
        assert head is not None
        self._choose, head.choose = head.choose, self._choose_scripted  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _choose_scripted(self, *args: Any, position: int, **rest: Any) -> Choice:
        self._choose(*args, position=position, **rest)
        return Choice(token_id=self.script[position - self.start])

    @property
    def peer(self) -> NodeInfo:
        return NodeInfo(node_id="0" * 64, name="here", version="1", os="", arch="")

    def send_nowait(self, message: Message, payload: bytes = b"") -> None:
        self._waiting.put((message, payload))

    def deliver_to(self, receiver: Callable[[Message, memoryview], None]) -> None:
        self._receiver = receiver

    async def wait_closed(self) -> None:
        await asyncio.Event().wait()

    def close(self) -> None:
        self._waiting.put(None)

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            message, payload = waiting[0], memoryview(waiting[1])
            if not isinstance(message, SessionMessage):
                continue
            for stage in self.stages:
                time.sleep(self.hop_s)
                assert isinstance(message, SessionMessage)
                message, payload = apply(stage, message, payload)
            time.sleep(self.hop_s)
            if isinstance(message, Result):
                self.steps += 1
                self._receiver(message, memoryview(b""))


def tokens_of(text: str, ids: dict[str, int]) -> list[int]:
    return [ids.setdefault(word, len(ids)) for word in re.findall(r"\w+| +|\n|[^\w\s]", text)]


def texts(count: int) -> dict[str, tuple[list[int], list[int]]]:
    """Prompts and answers of so many tokens."""
    ids: dict[str, int] = {}
    asked = (SOURCES / "cluster/driver/turns.py").read_text()
    edited = asked.replace("place", "rank_in_line").replace("waiting", "queued")
    edited = edited.replace("self._clock()", "self._now()")
    other = (SOURCES / "model/text/detokenizer.py").read_text()
    prompt = tokens_of(asked, ids)
    new = tokens_of(other, ids)[:count]
    wrong = list(range(len(ids), len(ids) + count))
    traps = [
        token
        for place in range(len(wrong) - GRAM)
        for token in (*wrong[place : place + GRAM], 0)
    ]  # fmt: skip
    return {
        "edit": (prompt, tokens_of(edited, ids)[:count]),
        "new": (prompt, new),
        "wrong": (traps, wrong),
    }


async def timed(
    generator: Generator,
    chain: ScriptedChain,
    prompt: list[int],
    answer: list[int],
    *,
    guesses: bool,
) -> tuple[float, int]:
    """Tokens a second of an answer, and its steps."""
    chain.script, chain.start = answer, len(prompt)
    first, found = 0.0, list[int]()
    events = generator.tokens(prompt, Sampling(), limit=len(answer), usage=Usage(), guesses=guesses)
    async for token in events:
        if not found:
            first, chain.steps = time.perf_counter(), 0
        found.append(token.token_id)
    assert found == answer
    return (len(found) - 1) / (time.perf_counter() - first), chain.steps


async def measure(options: argparse.Namespace, shape: str, chain: ScriptedChain) -> None:
    generator, stages = Generator(), chain.stages
    pipeline = Pipeline(
        epoch=0, first=chain, last=chain, stages=len(stages),
        is_exact_in_chunks=True, takes_drafts=all(stage.takes_drafts for stage in stages),
    )  # fmt: skip
    running = asyncio.create_task(pipeline.run())
    generator.attach(pipeline, context=CONTEXT)
    for hop in options.hops.split(","):
        chain.hop_s = float(hop) / 1000
        for name, (prompt, answer) in texts(options.tokens).items():
            rounds = [
                [await timed(generator, chain, prompt, answer, guesses=g) for g in (False, True)]
                for _ in range(options.rounds)
            ]
            ratio = median(guessed / alone for (alone, _), (guessed, _) in rounds)
            (alone, _), (guessed, steps) = rounds[-1]
            print(
                f"{shape:10} {len(stages)} stages, {hop:>2} ms a hop, {name:5}: {alone:5.1f} tokens/s, with guesses"
                f" {guessed:5.1f}, {ratio:.2f} times; {len(answer)} tokens in {steps} steps",
                flush=True,
            )
    pipeline.shut()
    running.cancel()
    await asyncio.wait([running])


def make_stages(options: argparse.Namespace, shape: str) -> list[Stage]:
    config = ModelConfig.from_dict(dict(SHAPES[shape]))
    cuts = [round(i * config.num_layers / options.stages) for i in range(options.stages + 1)]
    return [
        Stage(
            random_weights(
                config, range(*cuts[i : i + 2]), embedding=i == 0, head=i == options.stages - 1,
                scheme=options.scheme, device=CPU,
            ),
            context=CONTEXT, cache_budget=1 << 33,
        )
        for i in range(options.stages)
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default="qwen-0.5b,llama-1b")
    parser.add_argument("--scheme", default="int4")
    parser.add_argument("--hops", default="0,5")
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for shape in options.shapes.split(","):
        chain = ScriptedChain(make_stages(options, shape))
        asyncio.run(measure(options, shape, chain))
        chain.join()


if __name__ == "__main__":
    main()
