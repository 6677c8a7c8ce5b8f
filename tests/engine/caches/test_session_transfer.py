"""A cache that moves to other stages has the same bits there, or is not there at all."""

from collections.abc import Callable, Iterator

import pytest
import torch
from tiny_models import SESSION, Pipeline, Reference, Sizes
from torch import Tensor

from potluck.engine import stage_sessions
from potluck.engine.caches import moved_parts
from potluck.engine.caches.moved_parts import bytes_moved
from potluck.engine.caches.session_transfer import Piece, RowReceiver, RowSender
from potluck.engine.stage import Stage
from potluck.errors import InvalidStepError, NeedReplayError, OutOfMemoryError, PromptError
from potluck.ids import SessionId
from potluck.model.cache_rows import KeysAndValues, State
from potluck.model.caches import FullCache, RecurrentCache, WindowCache
from potluck.model.schemes import Cache, Scheme
from potluck.wire.activation_messages import TensorHeader

MakeReference = Callable[[str], Reference]
SIZES = Sizes(chunk=16, slack=20)


class Move:
    """A session's rows on their way from the stages of one pipeline to those of another, which are cut elsewhere."""

    def __init__(self, source: Pipeline, target: Pipeline, end: int) -> None:
        self.target, self.end = target, end
        begin = target.position
        self.receivers = [one.expect_rows(SESSION, begin, end, epoch=1) for one in target.stages]
        self.pairs = list(self._pairs(source, begin))

    def _pairs(self, source: Pipeline, begin: int) -> Iterator[tuple[RowSender, RowReceiver]]:
        for sending in source.stages:
            for receiving, receiver in zip(self.target.stages, self.receivers, strict=True):
                both = set(sending.weights.layers) & set(receiving.weights.layers)
                if both:
                    layers = range(min(both), max(both) + 1)
                    yield sending.send_rows(SESSION, layers, begin, self.end, epoch=1), receiver

    def go_on(self) -> int:
        """Move all that is computed; return how many pieces that were."""
        pieces = 0
        for sender, receiver in self.pairs:
            while (piece := sender.next()) is not None:
                write(receiver, piece)
                pieces += 1
        return pieces

    def finish(self) -> None:
        assert all(sender.is_done for sender, _ in self.pairs)
        for receiver in self.receivers:
            receiver.finish()
        self.target.position = self.end


def write(receiver: RowReceiver, piece: Piece) -> None:
    receiver.write(piece._replace(data=memoryview(bytes(piece.data))))


def pipelines(
    reference: Reference, scheme: Scheme = "f32", cache: Cache = "full"
) -> tuple[Pipeline, Pipeline]:
    return (
        Pipeline(reference, (2,), scheme, cache, **SIZES),
        Pipeline(reference, (1, 3), scheme, cache, **SIZES),
    )


def answer(pipeline: Pipeline, ids: Tensor) -> Tensor:
    """The logits of these tokens, one by one."""
    return torch.cat([pipeline.run(token) for token in ids.split(1)])


@pytest.mark.parametrize(
    ("variant", "scheme", "cache"),
    [
        ("llama", "f32", "full"),
        ("llama", "bf16", "full"),
        ("llama", "int4", "int8"),
        ("gemma 3", "f32", "int8"),
        ("gemma 3", "bf16", "full"),
        ("gemma 4 e2b", "f32", "full"),
        pytest.param("gemma 4 e2b", "int4", "int8", marks=pytest.mark.slow),
        pytest.param("deepseek 3.2", "f32", "int8", marks=pytest.mark.slow),
        pytest.param("llama 4 scout", "f32", "full", marks=pytest.mark.slow),
        ("qwen 3 next", "int8", "full"),
        ("falcon h1", "f32", "full"),
        ("deepseek 4", "f32", "full"),
        pytest.param("falcon h1, normed", "int8", "int8", marks=pytest.mark.slow),
        pytest.param("deepseek 4", "int4", "full", marks=pytest.mark.slow),
        pytest.param("granite 4", "bf16", "full", marks=pytest.mark.slow),
        pytest.param("qwen 4, n-grams", "f32", "full", marks=pytest.mark.slow),
        pytest.param("nemotron h", "int8", "full", marks=pytest.mark.slow),
        pytest.param(
            "minimax m3, text of a model with pictures", "f32", "full", marks=pytest.mark.slow
        ),
        pytest.param("mimo 2 flash", "int4", "int8", marks=pytest.mark.slow),
    ],
)
def test_an_answer_is_what_the_stages_that_read_the_prompt_would_have_said(
    make_reference: MakeReference,
    monkeypatch: pytest.MonkeyPatch,
    variant: str,
    scheme: Scheme,
    cache: Cache,
) -> None:
    monkeypatch.setattr(moved_parts, "PIECE", 300)  # some rows at once, and some values
    reference = make_reference(variant)
    source, target = pipelines(reference, scheme, cache)
    ids = reference.prompt(80)

    move = Move(source, target, 70)
    for chunk in ids[:70].split(16):
        source.run(chunk, 71)
        move.go_on()
    move.finish()

    expected = answer(source, ids[70:])
    assert torch.equal(answer(target, ids[70:]), expected)
    target.trim(70)  # a state has a checkpoint there
    assert target.position == 70
    assert torch.equal(answer(target, ids[70:]), expected)


def test_rows_go_as_soon_as_they_are_computed_and_only_those_that_are_missing(
    make_reference: MakeReference,
) -> None:
    reference = make_reference("llama")
    source, target = pipelines(reference)
    ids = reference.prompt(60)
    target.run(ids[:16])
    target.run(ids[16:20])

    move, counts = Move(source, target, 50), list[int]()
    for chunk in ids[:50].split(16):
        source.run(chunk)
        counts.append(move.go_on())
    move.finish()

    assert counts == [0, 4, 4, 4]  # one piece for each layer
    assert torch.equal(answer(target, ids[50:]), answer(source, ids[50:]))


@pytest.mark.parametrize("variant", ["llama", "gemma 3", "qwen 3 next", "falcon h1", "deepseek 4"])
def test_what_breaks_leaves_the_session_as_it_was(
    make_reference: MakeReference, variant: str
) -> None:
    reference = make_reference(variant)
    source, target = pipelines(reference)
    ids = reference.prompt(60)
    undisturbed = Pipeline(reference, (1, 3), **SIZES)
    for one in (target, undisturbed):
        for chunk in ids[:20].split(16):
            one.run(chunk)

    move = Move(source, target, 50)
    for chunk in ids[:50].split(16):
        source.run(chunk)
    for sender, receiver in move.pairs[:-1]:
        while (piece := sender.next()) is not None:
            write(receiver, piece)
    with pytest.raises(InvalidStepError, match="Not all rows"):
        move.receivers[-1].finish()

    assert [one.position(SESSION) for one in target.stages] == [20, 20, 20]
    assert torch.equal(answer(target, ids[20:50]), answer(undisturbed, ids[20:50]))


@pytest.mark.parametrize(
    "variant", ["gemma 3", "gemma 4 e2b", "qwen 3 next", "falcon h1", "deepseek 4"]
)
def test_a_conversation_goes_on_behind_its_tokens_with_what_others_have_read(
    make_reference: MakeReference, variant: str
) -> None:
    reference = make_reference(variant)
    source, target = pipelines(reference)
    ids = reference.prompt(80)
    for chunk in ids[:20].split(16):
        target.run(chunk)

    move = Move(source, target, 70)
    for chunk in ids[:70].split(16):
        source.run(chunk)
        move.go_on()
    fork = SessionId("fork")
    target.stages[0].open(fork, epoch=1, source=SESSION, position=20)  # it has none of the new rows
    assert target.stages[0].position(fork) in (20, 16)  # a state has a checkpoint there
    move.finish()

    assert torch.equal(answer(target, ids[70:]), answer(source, ids[70:]))


def test_what_is_not_the_next_of_these_layers_is_refused(make_reference: MakeReference) -> None:
    reference = make_reference("gemma 3")
    source, target = pipelines(reference)
    move = Move(source, target, 40)
    for chunk in reference.prompt(40).split(16):
        source.run(chunk)
    for sender, receiver in move.pairs:
        pieces = list(iter(sender.next, None))
        for piece in pieces:
            tensor = piece.tensor
            for wrong in (
                piece._replace(layer=99),
                piece._replace(first=piece.first + 1),
                piece._replace(tensor=TensorHeader(dtype="I8", shape=(*tensor.shape[:3], 4))),
                piece._replace(tensor=TensorHeader(dtype="F32", shape=(len(piece.data) // 4,))),
                piece._replace(data=piece.data[: len(piece.data) // 2]),
            ):
                with pytest.raises((InvalidStepError, RuntimeError)):
                    write(receiver, wrong)
            write(receiver, piece)
            with pytest.raises(InvalidStepError):
                write(receiver, piece)
    move.finish()
    assert all(one.position(SESSION) == 40 for one in target.stages)


def test_a_session_that_changes_meanwhile_is_not_taken_apart(llama: Reference) -> None:
    source, target = pipelines(llama)
    ids = llama.prompt(40)
    move = Move(source, target, 30)
    source.run(ids[:16])
    move.go_on()
    source.trim(8)
    with pytest.raises(InvalidStepError, match="changed"):
        move.go_on()

    source.run(ids[8:24])
    move.go_on()
    target.run(ids[:3])
    source.run(ids[24:30])
    with pytest.raises(InvalidStepError, match="changed"):
        move.go_on()
    assert torch.equal(target.run(ids[3:5]), answer_of(llama, ids[:5])[3:])


def answer_of(reference: Reference, ids: Tensor) -> Tensor:
    return Pipeline(reference, (1, 3), **SIZES).run(ids)


def test_a_stage_says_what_it_has_no_room_for(
    llama: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = llama.stage(context=64)
    one.open(SESSION, epoch=1)
    with pytest.raises(NeedReplayError):
        one.expect_rows(SESSION, 3, 20, epoch=1)
    with pytest.raises(PromptError):
        one.expect_rows(SESSION, 0, 64, epoch=1)
    with pytest.raises(OutOfMemoryError):
        llama_with_little_memory(llama).expect_rows(SESSION, 0, 60, epoch=1)
    monkeypatch.setattr(stage_sessions, "MOST_MOVED_BYTES", 100)
    with pytest.raises(OutOfMemoryError, match="moved to another computer"):
        one.expect_rows(SESSION, 0, 20, epoch=1)
    assert one.position(SessionId("chat")) == 0


def test_windows_and_states_come_whole_and_count_so() -> None:
    row = KeysAndValues(heads=1, size=4, number_bytes=4)  # 32 bytes
    full, window = FullCache(row=row), WindowCache(row=row, window=100, chunk=20, slack=20)
    state = RecurrentCache(row=State(shapes=((3, 3),)))
    assert bytes_moved([full], 1000, 1010) == 10 * row.nbytes
    assert bytes_moved([window], 1000, 1010) == 120 * row.nbytes
    assert bytes_moved([state], 1000, 1010) == state.row.nbytes
    assert bytes_moved([full, window], 0, 10) == 20 * row.nbytes


def llama_with_little_memory(llama: Reference) -> Stage:
    made = llama.stage(context=64, cache_budget=1 << 14)
    made.open(SESSION, epoch=1)
    return made
