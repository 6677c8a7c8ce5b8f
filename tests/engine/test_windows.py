"""Layers with a sliding window hold what it needs, and compute what they would with all tokens."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stage_steps import OTHER, forward
from tiny_models import CONTEXT, SESSION, Pipeline, Reference, difference, make_model
from torch import Tensor

from potluck.engine.stage import Output, Stage
from potluck.errors import NeedReplayError, OutOfMemoryError
from potluck.model.caches import WindowCache
from potluck.model.schemes import Cache, Scheme

MakeReference = Callable[..., Reference]

CHUNK, SLACK = 12, 16  # so that the windows of the variants, 7 and 9 tokens, move often
VARIANTS = [
    "llama 4 scout",
    "gpt-oss",
    "gemma 2",
    "gemma 3",
    "gemma 4 e2b",
    "exaone 4, hybrid",
    "mimo 2 flash",
    "qwen 3 moe, some layers, odd",
]


class Broken:
    """The MLP of a layer that has no memory left."""

    def __call__(self, x: Tensor) -> Tensor:
        raise MemoryError


class Conversation:
    """A model in two stages, and what a driver does with them: it replays what a stage has lost."""

    def __init__(self, reference: Reference, **options: Any) -> None:
        self.reference, self.ids = reference, torch.empty(0, dtype=torch.int32)
        self.pipeline = Pipeline(reference, [2], **options)
        self._seed = self.replays = 0

    @property
    def room(self) -> int:
        """The number of tokens that the context still has room for."""
        return CONTEXT - len(self.ids)

    def run(self, tokens: int) -> Tensor:
        """Return the logits of so many more tokens, and of those that had to be sent again."""
        self._seed += 1
        self.ids = torch.cat((self.ids, self.reference.prompt(tokens, self._seed)))
        start = min(stage.position(SESSION) for stage in self.pipeline.stages)
        self.replays += start + tokens < len(self.ids)
        for stage in self.pipeline.stages:
            stage.trim(SESSION, start, epoch=1)
        self.pipeline.position = start
        pieces = self.ids[start:].split(CHUNK)
        return torch.cat([self.pipeline.run(piece) for piece in pieces])

    def trim(self, position: int) -> None:
        for stage in self.pipeline.stages:
            if stage.position(SESSION) > position:
                stage.trim(SESSION, position, epoch=1)
        self.ids = self.ids[:position]

    def fail(self, tokens: int) -> None:
        """A step that runs out of memory in the last layer of the last stage."""
        kept = self.ids
        with breaking(self.pipeline.stages[-1]), pytest.raises(OutOfMemoryError):
            self.run(tokens)
        self.ids = kept
        self.trim(len(kept))  # the first stage did it


@contextmanager
def breaking(stage: Stage) -> Iterator[None]:
    block = stage.weights.blocks[-1]
    mlp, block.mlp = block.mlp, Broken()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        block.mlp = mlp


def window_rows(stage: Stage) -> list[int]:
    """The rows that a session has in each layer with a window."""
    layers = stage._sessions[SESSION].cache.layers
    pairs = zip(stage.caches, layers, strict=True)
    return [layer.rows for spec, layer in pairs if isinstance(spec, WindowCache)]


def first_held(stage: Stage) -> list[int]:
    return [layer.first for layer in stage._sessions[SESSION].cache.layers]


@settings(
    deadline=None,
    max_examples=8,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    actions=st.lists(
        st.tuples(
            st.sampled_from(["run", "run", "run", "token", "trim", "fail"]), st.integers(1, 30)
        ),
        min_size=4,
        max_size=14,
    ),
    slack=st.sampled_from([0, 5, SLACK, 200]),
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_whatever_was_sent_trimmed_or_failed_logits_are_those_of_transformers(
    make_reference: MakeReference, variant: str, actions: list[tuple[str, int]], slack: int
) -> None:
    reference = make_reference(variant)
    conversation = Conversation(reference, chunk=CHUNK, slack=slack)
    for action, count in actions:
        match action:
            case "trim":
                conversation.trim(max(0, len(conversation.ids) - count))
                continue
            case "fail":
                count = max(
                    2, count
                )  # one token goes through generated layers, which need no memory
                if conversation.room >= count:
                    conversation.fail(count)
                continue
            case "token":
                count = 1
            case _:
                pass
        if conversation.room < count:
            conversation.trim(count)
        logits = conversation.run(count)
        expected = reference.logits(conversation.ids)[-len(logits) :]
        assert difference(logits, expected) < 2e-5


@pytest.mark.parametrize("sizes", [(1,) * 60, (12,) * 5, (12, 12, 1, 1, 1, 7, 12, 1, 12, 1)])
def test_a_long_session_holds_no_more_rows_than_its_window_needs(
    make_reference: MakeReference, sizes: Sequence[int]
) -> None:
    reference = make_reference("gemma 3")
    stage = reference.stage(chunk=CHUNK, slack=SLACK)
    stage.open(SESSION, epoch=1)
    ids = reference.prompt(sum(sizes))

    for piece in ids.split(list(sizes)):
        forward(stage, piece, stage.position(SESSION))

    assert window_rows(stage) == [7 + SLACK] * 4
    assert stage.nbytes - stage.weights.nbytes == sum(spec.nbytes(CONTEXT) for spec in stage.caches)
    assert stage.cache_tokens == CONTEXT


@pytest.mark.parametrize(
    ("variant", "scheme", "cache"),
    [
        ("mistral, window", "f32", "full"),
        ("mistral, window", "int4", "int8"),
        ("gemma 2", "int8", "full"),
        ("gemma 3", "bf16", "full"),
        ("gemma 3", "int4", "full"),
    ],
)
def test_windows_that_move_compute_the_same_numbers_as_windows_that_hold_all(
    tmp_path: Path,
    variant: str,
    scheme: Scheme,
    cache: Cache,
) -> None:
    """This holds in torch, and in generated attention and decoding."""
    sizes = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 80}  # whole blocks of rows
    reference = make_model(variant, tmp_path, changes=sizes)
    small, large = (
        Conversation(reference, scheme=scheme, cache=cache, chunk=CHUNK, slack=slack)
        for slack in (SLACK, CONTEXT)
    )

    for count in (12, 1, 1, 11, 1, 1, 12, 5, *(1,) * 20, -9, 1, 1, 12, -12, 3, 1):
        if count < 0:
            for one in (small, large):
                one.trim(len(one.ids) + count)
        else:
            ours, theirs = small.run(count), large.run(count)
            assert torch.equal(ours[-count:], theirs[-count:])

    assert max(map(max, map(window_rows, small.pipeline.stages))) <= 9 + SLACK
    assert max(map(max, map(window_rows, large.pipeline.stages))) == CONTEXT
    assert small.replays == large.replays == 0


def test_a_trim_within_the_slack_needs_no_replay_and_one_beyond_it_does(
    make_reference: MakeReference,
) -> None:
    reference = make_reference("gemma 3")
    stage = reference.stage(chunk=CHUNK, slack=SLACK)
    stage.open(SESSION, epoch=1)
    ids = reference.prompt(70)
    for piece in ids.split(CHUNK):
        forward(stage, piece, stage.position(SESSION))

    stage.trim(SESSION, 70 - SLACK * 3 // 4, epoch=1)
    assert stage.position(SESSION) == 70 - SLACK * 3 // 4
    stage.trim(SESSION, 70 - 2 * SLACK, epoch=1)

    assert stage.position(SESSION) == 0
    with pytest.raises(NeedReplayError) as caught:
        forward(stage, ids[:1], 70 - 2 * SLACK)
    assert caught.value.data["position"] == 0


def test_a_step_that_is_repeated_after_its_window_moved_is_computed_again(
    make_reference: MakeReference,
) -> None:
    reference = make_reference("gemma 3")
    stage = reference.stage(head=False, chunk=CHUNK, slack=0)
    ids = reference.prompt(4 * CHUNK)
    outputs = list[Output]()
    for session in (SESSION, OTHER):
        stage.open(session, epoch=1)
        for position in range(0, len(ids), CHUNK):
            piece = ids[position : position + CHUNK]
            outputs.append(forward(stage, piece, position, session=session))

    again = forward(stage, ids[-CHUNK:], 3 * CHUNK).hidden

    before = outputs[-1].hidden
    assert stage._sessions[OTHER].output is None
    assert again is not None
    assert before is not None
    assert torch.equal(again.tensor, before.tensor)


def test_a_step_that_fails_leaves_windows_that_the_session_goes_on_with(
    make_reference: MakeReference,
) -> None:
    reference = make_reference("gemma 3")
    conversation = Conversation(reference, chunk=CHUNK, slack=SLACK)
    conversation.run(40)
    last = conversation.pipeline.stages[-1]
    before = first_held(last)

    conversation.fail(12)

    assert first_held(last) != before  # it moved
    assert last.position(SESSION) == 40
    conversation.trim(40 - (SLACK - CHUNK))
    logits = conversation.run(3)
    assert conversation.replays == 0
    expected = reference.logits(conversation.ids)[-3:]
    assert difference(logits, expected) < 1e-5


def test_an_evicted_session_begins_with_windows_that_hold_nothing(
    make_reference: MakeReference,
) -> None:
    reference = make_reference("mistral, window")
    conversation = Conversation(reference, chunk=CHUNK, slack=SLACK)
    conversation.run(60)

    for stage in conversation.pipeline.stages:
        stage._sessions[SESSION].cache.evict()
        assert first_held(stage) == [0, 0]
    logits = conversation.run(1)

    assert conversation.replays == 1
    assert difference(logits, reference.logits(conversation.ids)) < 1e-5
