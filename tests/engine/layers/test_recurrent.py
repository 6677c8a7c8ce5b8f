"""Layers with a recurrent state keep checkpoints of it, and a stage goes back to these."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stage_steps import OTHER, forward
from tiny_models import CONTEXT, SESSION, Reference, difference
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.state_cache import StateCache
from potluck.engine.layers.attention import Step
from potluck.engine.layers.blocks import DecoderLayer, LayerRun
from potluck.engine.stage import Stage
from potluck.errors import NeedReplayError, OutOfMemoryError
from potluck.ids import SessionId
from potluck.model.cache_rows import State
from potluck.model.caches import CacheSizes, CacheSpec, RecurrentCache, session_bytes
from potluck.model.families.facts import LayerNorms

MakeReference = Callable[..., Reference]

CHUNK, CHECKPOINTS, EVERY = 12, 3, 5


@dataclass(frozen=True, slots=True)
class MovingSumSpec:
    """A mixer of this test's own. It has a sum, and the input before as a convolution would."""

    size: int

    def cache(self, sizes: CacheSizes) -> CacheSpec:
        row = State(shapes=((self.size,), (1, self.size)))
        return RecurrentCache(row=row, checkpoints=CHECKPOINTS, every=EVERY)


class MovingSum:
    """Each input is added to half of the sum before; the result is the sum and the input before."""

    nbytes = 0

    def project(self, x: Tensor) -> Tensor:
        return x

    def output(self, mixed: Tensor) -> Tensor:
        return mixed

    def mix(self, rows: Tensor, cache: LayerCache, step: Step) -> Tensor:
        assert isinstance(cache, StateCache)
        total, (before,) = cache.state(step.position)
        out: list[Tensor] = []
        for row in rows:
            total.mul_(0.5).add_(row)
            out.append(total + before)
            before.copy_(row)
        return torch.stack(out)


class Nothing:
    """An MLP that adds nothing."""

    nbytes = 0

    def __call__(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


class Broken(Nothing):
    """The MLP of a layer that has no memory left."""

    def __call__(self, x: Tensor) -> Tensor:
        raise MemoryError


class Conversation:
    """A session of a stage, and what a driver does with it: it replays what the stage has lost."""

    def __init__(
        self, reference: Reference, *, attends: Collection[int] = (), cache_budget: int = 1 << 24
    ) -> None:
        """`attends` are the layers that stay attention; the others become moving sums."""
        self.reference, self.ids = reference, torch.empty(0, dtype=torch.int32)
        weights = reference.stage(head=False).weights
        blocks = [
            block if index in attends else _moving_sum(block)
            for index, block in enumerate(weights.blocks)
        ]
        weights = replace(weights, blocks=tuple(blocks), runs=(LayerRun(0, blocks),))
        self.stage, self._fresh = (
            Stage(
                weights, context=CONTEXT, cache_budget=cache_budget, epoch=1, chunk=CHUNK, slack=16
            )
            for _ in range(2)
        )
        self.stage.open(SESSION, epoch=1)
        self._seed = self._step = 0

    def run(self, tokens: int) -> Tensor:
        """The hidden states (1, D) of the last of so many more tokens."""
        self._seed += 1
        self.ids = torch.cat((self.ids, self.reference.prompt(tokens, self._seed)))
        return self._send(self.stage)

    def trim(self, position: int) -> None:
        if self.stage.position(SESSION) >= position:
            self.stage.trim(SESSION, position, epoch=1)
        self.ids = self.ids[:position]

    def fail(self, tokens: int) -> None:
        """A step that runs out of memory in the last layer."""
        kept, block = self.ids, self.stage.weights.blocks[-1]
        mlp, block.mlp = block.mlp, Broken()  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(OutOfMemoryError):
            self.run(tokens)
        self.ids, block.mlp = kept, mlp

    def fresh(self) -> tuple[Tensor, list[Tensor]]:
        """The last hidden states and all states, as another stage computes them of these tokens."""
        self._fresh.open(SESSION, epoch=1)
        return self._send(self._fresh), states_of(self._fresh)

    def _send(self, stage: Stage) -> Tensor:
        """Send what the stage does not have, in chunks."""
        hidden = torch.empty(0)
        for piece in self.ids[stage.position(SESSION) :].split(CHUNK):
            self._step += 1
            output = forward(stage, piece, stage.position(SESSION), step=self._step)
            assert output.hidden is not None
            hidden = output.hidden.tensor
        return hidden[-1:]


def _moving_sum(block: DecoderLayer) -> DecoderLayer:
    mixer: Any = MovingSumSpec(block.spec.hidden_size)
    parts: list[Any] = [MovingSum(), Nothing(), LayerNorms()]
    return DecoderLayer(replace(block.spec, mixer=mixer), *parts)


def state_caches(stage: Stage, session: SessionId = SESSION) -> list[StateCache]:
    layers = stage._sessions[session].cache.layers
    return [layer for layer in layers if isinstance(layer, StateCache)]


def states_of(stage: Stage) -> list[Tensor]:
    position = stage.position(SESSION)
    return [part for layer in state_caches(stage) for part in layer.state(position)]


def same(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("sizes", [(40,), (12, 12, 12, 4), (1,) * 40, (7, 1, 1, 12, 1, 18)])
def test_a_state_is_that_of_its_tokens_however_they_were_sent(
    llama: Reference, sizes: Sequence[int]
) -> None:
    conversation = Conversation(llama)
    for size in sizes:
        conversation.run(size)

    embedding = conversation.stage.weights.embedding
    assert embedding is not None
    inputs = embedding(conversation.ids).double()
    weights = 0.5 ** torch.arange(len(inputs) - 1, -1, -1, dtype=torch.float64)
    total, last = states_of(conversation.stage)[:2]  # of the first layer
    assert torch.allclose(total.double(), weights @ inputs, rtol=1e-6, atol=1e-6)
    assert torch.equal(last.double(), inputs[-1:])
    assert same(states_of(conversation.stage), conversation.fresh()[1])  # of all layers


@pytest.mark.parametrize("wish", range(0, 61, 3))
def test_after_any_trim_a_replay_gives_the_same_states_to_the_bit(
    llama: Reference, wish: int
) -> None:
    conversation = Conversation(llama)
    for size in (12, 12, 1, 1, 1, 9, *(1,) * 24):
        conversation.run(size)
    held = state_caches(conversation.stage)[0].held

    conversation.trim(wish)

    nearest = 60 if wish == 60 else max(at for at in (0, *held) if at <= wish)
    assert conversation.stage.position(SESSION) == nearest
    conversation.run(3)
    assert same(states_of(conversation.stage), conversation.fresh()[1])


def test_the_step_after_a_trim_says_from_where_to_replay(llama: Reference) -> None:
    conversation = Conversation(llama)
    conversation.run(CHUNK)
    conversation.run(CHUNK)
    stage = conversation.stage

    stage.trim(SESSION, 20, epoch=1)

    with pytest.raises(NeedReplayError) as caught:
        forward(stage, conversation.ids[20:21], 20)
    assert caught.value.data["position"] == CHUNK


@settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    actions=st.lists(
        st.tuples(
            st.sampled_from(["run", "run", "token", "trim", "fail", "evict"]), st.integers(1, 30)
        ),
        min_size=3,
        max_size=20,
    )
)
@pytest.mark.parametrize(
    ("variant", "attends"), [("llama", ()), ("gemma 3", (1, 2))], ids=["alone", "beside attention"]
)
def test_whatever_was_sent_trimmed_or_failed_a_session_goes_on_as_a_new_one_would(
    make_reference: MakeReference,
    variant: str,
    attends: Collection[int],
    actions: Sequence[tuple[str, int]],
) -> None:
    """Beside attention, of all tokens and in windows, chunks and tokens differ in the last bits."""
    conversation = Conversation(make_reference(variant), attends=attends)
    for action, count in actions:
        count = 1 if action == "token" else count
        if len(conversation.ids) + count > CONTEXT:
            conversation.trim(count)
        match action:
            case "trim":
                conversation.trim(max(0, len(conversation.ids) - count))
            case "fail":
                conversation.fail(count)
            case "evict":
                conversation.stage._sessions[SESSION].cache.evict()
            case _:
                hidden = conversation.run(count)
                expected, states = conversation.fresh()
                if attends:
                    assert difference(hidden, expected) < 1e-5
                else:
                    assert torch.equal(hidden, expected)
                    assert same(states_of(conversation.stage), states)


def test_a_step_that_fails_is_not_left_in_the_states(llama: Reference) -> None:
    conversation = Conversation(llama)
    conversation.run(20)
    conversation.run(2)
    conversation.fail(7)

    assert conversation.stage.position(SESSION) == 22  # there was a checkpoint before the step
    conversation.run(1)
    conversation.fail(1)

    assert conversation.stage.position(SESSION) == 22  # and none before a single token
    conversation.run(1)
    assert same(states_of(conversation.stage), conversation.fresh()[1])


def test_a_chunk_that_is_repeated_after_another_session_is_computed_again(llama: Reference) -> None:
    conversation = Conversation(llama)
    stage, ids = conversation.stage, llama.prompt(2 * CHUNK)
    stage.open(OTHER, epoch=1)
    first = [forward(stage, piece, at) for at, piece in ((0, ids[:CHUNK]), (CHUNK, ids[CHUNK:]))]
    forward(stage, ids[:5], 0, session=OTHER)

    again = forward(stage, ids[CHUNK:], CHUNK)

    assert again is not first[1]
    assert again.hidden is not None
    assert first[1].hidden is not None
    assert torch.equal(again.hidden.tensor, first[1].hidden.tensor)


def test_sessions_do_not_see_each_others_states(llama: Reference) -> None:
    conversation = Conversation(llama)
    stage, theirs = conversation.stage, llama.prompt(30, seed=9)
    stage.open(OTHER, epoch=1)
    for position in range(0, 30, 10):
        conversation.run(11)
        forward(stage, theirs[position : position + 10], position, session=OTHER)

    conversation.trim(15)
    conversation.run(1)

    assert same(states_of(stage), conversation.fresh()[1])
    assert stage.position(OTHER) == 30


def test_states_take_the_memory_that_is_accounted_and_no_more_of_them_are_kept(
    llama: Reference,
) -> None:
    conversation = Conversation(llama)
    stage = conversation.stage
    stage.open(OTHER, epoch=1)
    forward(stage, llama.prompt(1), 0, session=OTHER)
    for size in (12, 5, *(1,) * 60, 12):
        conversation.run(size)

    layers = [layer for session in (SESSION, OTHER) for layer in state_caches(stage, session)]
    one = 4 * (1 + CHECKPOINTS) * 2 * llama.config.hidden_size  # f32, in either part
    assert {spec.nbytes(1) for spec in stage.caches} == {
        spec.nbytes(CONTEXT) for spec in stage.caches
    }
    assert [layer.both.untyped_storage().nbytes() for layer in layers] == [one] * 8
    assert (
        stage.nbytes - stage.weights.nbytes == 8 * one == 2 * session_bytes(stage.caches, CONTEXT)
    )


def test_a_stage_without_room_for_a_state_refuses_the_first_step(llama: Reference) -> None:
    state = 4 * (1 + CHECKPOINTS) * 2 * llama.config.hidden_size
    room = Conversation(llama, cache_budget=4 * state)
    assert room.stage.cache_tokens == CONTEXT
    room.run(CONTEXT)

    with pytest.raises(OutOfMemoryError, match="1 tokens"):
        Conversation(llama, cache_budget=4 * state - 1).run(1)
