"""A stage whose tokens are replayed gives what one whose layers are computed gives, whatever happens."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Unpack

import pytest
import torch
from tape_graphs import TapeGraphs
from tiny_models import Reference, Sizes
from torch import Tensor

from potluck.engine.accelerator import GraphedHead, graph_runs
from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.stage import Output, Stage
from potluck.errors import NeedReplayError, OutOfMemoryError
from potluck.ids import SessionId
from potluck.wire.activation_messages import Sampling

pytestmark = pytest.mark.usefixtures("torch_alone")

MakeReference = Callable[..., Reference]

CONTEXT = 1200
FIRST, SECOND = SessionId("first"), SessionId("second")
GREEDY = Sampling(temperature=0.0, logprobs=3)


class Pair:
    """The same weights twice; what is done to one is done to the other, and has to give the same."""

    def __init__(self, reference: Reference, budget: int = 1 << 24, **sizes: Unpack[Sizes]) -> None:
        self._reference, self._steps, self.errors = reference, 0, list[float]()
        self.graphs = TapeGraphs()
        self.replayed, self._plain = (
            reference.stage(context=CONTEXT, cache_budget=budget, **sizes) for _ in range(2)
        )
        weights = self.replayed.weights
        self.replayed._forward_pass._weights = replace(
            weights, runs=graph_runs(weights.blocks, self.graphs)
        )
        assert self.replayed.head is not None
        self.replayed.head._graphed = GraphedHead(self.graphs)

    def open(self, *sessions: SessionId) -> None:
        for session in sessions:
            for stage in (self.replayed, self._plain):
                stage.open(session, epoch=1)

    def trim(self, session: SessionId, position: int) -> None:
        for stage in (self.replayed, self._plain):
            stage.trim(session, position, epoch=1)

    def run(self, session: SessionId, tokens: int, prompt_end: int | None = None) -> None:
        """Run so many more tokens at once."""
        ids = self._reference.prompt(tokens, seed=self._steps)
        ours, theirs = (self._forward(stage, session, ids, prompt_end) for stage in self._stages)
        self._steps += 1
        assert ours.choice is not None
        assert theirs.choice is not None
        top = [dict(choice.top) for choice in (ours.choice, theirs.choice)]
        assert top[0].keys() == top[1].keys()
        self.errors += [abs(top[0][token] - top[1][token]) for token in top[0]]

    def tokens(self, session: SessionId, count: int) -> None:
        """Run so many more tokens one by one."""
        for _ in range(count):
            self.run(session, 1)

    @property
    def _stages(self) -> tuple[Stage, Stage]:
        return self.replayed, self._plain

    def _forward(
        self, stage: Stage, session: SessionId, ids: Tensor, prompt_end: int | None = None
    ) -> Output:
        return stage.forward(
            session,
            ids,
            epoch=1,
            step=self._steps,
            position=stage.position(session),
            prompt_end=prompt_end,
            sampling=GREEDY,
        )


@pytest.fixture(autouse=True)
def garbage(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU's new memory holds anything, also what is not a number."""
    resize = LayerCache.resize

    def resize_onto_garbage(self: LayerCache, capacity: int, length: int) -> None:
        resize(self, capacity, length)
        self.both[:, :, length:].fill_(torch.nan)

    monkeypatch.setattr(LayerCache, "resize", resize_onto_garbage)
    with torch.inference_mode():
        yield


def check(pair: Pair) -> None:
    assert pair.errors
    assert max(pair.errors) < 1e-4
    assert sum(tape.replays for tape in pair.graphs.captured) > 0


@pytest.mark.parametrize("variant", ["llama", "gemma 3", "qwen 3 moe, some layers, odd", "gpt-oss"])
def test_a_conversation_of_chunks_tokens_and_regrets(
    make_reference: MakeReference, variant: str
) -> None:
    pair = Pair(make_reference(variant))
    pair.open(FIRST)

    pair.run(FIRST, 30)
    pair.tokens(FIRST, 4)
    pair.run(FIRST, 215)
    pair.tokens(FIRST, 12)  # beyond 256: a longer prefix, and a cache that grows
    pair.run(FIRST, 260)
    pair.tokens(FIRST, 3)
    pair.trim(FIRST, 250)
    pair.tokens(FIRST, 3)
    pair.trim(FIRST, 20)
    pair.run(FIRST, 7)
    pair.tokens(FIRST, 3)

    check(pair)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["mistral, window", "gemma 3"])
def test_windows_that_move_under_a_graph(make_reference: MakeReference, variant: str) -> None:
    pair = Pair(make_reference(variant), chunk=250, slack=290)
    pair.open(FIRST, SECOND)

    pair.run(FIRST, 250)
    pair.tokens(FIRST, 30)
    for _ in range(3):
        pair.run(FIRST, 240)
        pair.run(SECOND, 20)
        pair.tokens(FIRST, 2)
        pair.tokens(SECOND, 1)
    pair.trim(FIRST, 900)
    pair.tokens(FIRST, 80)  # a window moves between two tokens
    pair.trim(FIRST, 960)
    pair.tokens(FIRST, 2)
    assert pair.replayed._sessions[FIRST].cache.layers[0].first > 900 - 290

    check(pair)


def test_two_conversations_in_turns(llama: Reference) -> None:
    pair = Pair(llama)
    pair.open(FIRST, SECOND)

    pair.run(FIRST, 20)
    pair.run(SECOND, 250)
    for _ in range(10):
        pair.tokens(FIRST, 1)
        pair.tokens(SECOND, 1)
    pair.open(FIRST)  # anew
    pair.run(FIRST, 9)
    pair.tokens(FIRST, 2)
    pair.tokens(SECOND, 2)

    check(pair)


def test_a_conversation_whose_cache_had_to_go_comes_back(llama: Reference) -> None:
    pair = Pair(llama, budget=512 * 2 * 4 * 2 * 12 * 4)  # tokens of 2 x layers x heads x size x f32
    pair.open(FIRST, SECOND)

    pair.run(FIRST, 200)
    pair.tokens(FIRST, 2)
    pair.run(SECOND, 300)
    pair.tokens(SECOND, 2)
    assert pair.replayed.position(FIRST) == 0
    with pytest.raises(NeedReplayError):
        pair.replayed.forward(FIRST, torch.tensor([1]), epoch=1, step=99, position=202)
    pair.run(FIRST, 200)
    pair.tokens(FIRST, 2)

    check(pair)


def test_memory_that_runs_out_in_the_middle_costs_one_step(
    llama: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(llama)
    pair.open(FIRST)
    pair.run(FIRST, 300, prompt_end=600)
    pair.run(FIRST, 300)
    pair.tokens(FIRST, 2)
    assert pair.replayed._sessions[FIRST].cache.capacity == 768
    grow, grown = LayerCache.resize, list[int]()

    def fail_in_the_third_layer(self: LayerCache, capacity: int, length: int) -> None:
        grown.append(capacity)
        if len(grown) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        grow(self, capacity, length)

    with monkeypatch.context() as full:
        full.setattr(LayerCache, "resize", fail_in_the_third_layer)
        for stage in pair._stages:
            grown.clear()
            with suppress(OutOfMemoryError):
                pair._forward(stage, FIRST, llama.prompt(500))
            assert len(grown) == 3
    assert pair.replayed.position(FIRST) == 602

    pair.tokens(FIRST, 3)  # in caches of which some are larger
    pair.run(FIRST, 500)
    pair.tokens(FIRST, 3)

    check(pair)
    assert (
        sum(tape.replays for tape in pair.graphs.captured) == 8 + 11
    )  # layers; head, of chunks too


def test_a_capture_without_memory_costs_nothing_but_time(llama: Reference) -> None:
    pair = Pair(llama)
    pair.open(FIRST)
    pair.graphs.failure = torch.OutOfMemoryError("CUDA out of memory.")
    pair.run(FIRST, 9)
    pair.tokens(FIRST, 60)
    assert not pair.graphs.captured
    pair.graphs.failure = None
    pair.tokens(FIRST, 10)

    check(pair)
    assert len(pair.graphs.captured) == 2  # layers and head
