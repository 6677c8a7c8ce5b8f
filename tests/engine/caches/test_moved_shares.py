"""Caches move between whole stages and ranks of groups: heads are cut and joined, and no bit changes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest

import pytest
import torch
from fake_ranks import RankedReference, RankedStage
from tiny_models import SESSION, Pipeline, Reference, Sizes, difference
from torch import Tensor

from potluck.engine.caches import coming_rows, moved_parts
from potluck.engine.caches.session_transfer import Piece, RowReceiver
from potluck.engine.stage import Stage
from potluck.errors import InvalidStepError
from potluck.model.schemes import Cache, Scheme
from potluck.model.shares import Share

MakeReference = Callable[[str], Reference]
SIZES = Sizes(chunk=16, slack=20)
END = 50
TOLERANCE = 1e-4  # of the largest logit: ranks add in another order than a whole stage


def pipeline(
    reference: Reference,
    parts: tuple[int, ...],
    cuts: Sequence[int],
    scheme: Scheme = "f32",
    cache: Cache = "full",
) -> Pipeline:
    """Whole stages, or groups of ranks with these parts."""
    of = RankedReference.of(reference, parts) if len(parts) > 1 else reference
    return Pipeline(of, cuts, scheme, cache, **SIZES)


def stages_of(pipeline: Pipeline) -> Iterator[Stage]:
    for one in pipeline.stages:
        group: object = one
        yield from group.stages if isinstance(group, RankedStage) else (one,)


def pieces(sending: Stage, receiving: Stage, begin: int, end: int) -> Iterator[Piece]:
    both = set(sending.weights.layers) & set(receiving.weights.layers)
    layers = range(min(both, default=0), max(both, default=-1) + 1)
    rows = sending.send_rows(SESSION, layers, begin, end, epoch=1, to=receiving.shares.share)
    yield from iter(rows.next, None)
    assert rows.is_done


def move(source: Pipeline, target: Pipeline, end: int = END) -> int:
    """Move all that is cached, from all stages and ranks to a stage in turns; return its bytes."""
    begin, nbytes = target.position, 0
    for receiving in stages_of(target):
        rows = receiving.expect_rows(SESSION, begin, end, epoch=1)
        sent = [pieces(sending, receiving, begin, end) for sending in stages_of(source)]
        for piece in (one for turn in zip_longest(*sent) for one in turn if one is not None):
            nbytes += piece.data.nbytes
            rows.write(piece._replace(data=memoryview(bytearray(piece.data))))
        assert rows.is_whole
        rows.finish()
    target.position = end
    return nbytes


def write_all(rows: RowReceiver, pieces: Iterable[Piece]) -> None:
    for piece in pieces:
        rows.write(piece)


def read(pipeline: Pipeline, ids: Tensor) -> None:
    for chunk in ids.split(16):
        pipeline.run(chunk)


def answer(pipeline: Pipeline, ids: Tensor) -> Tensor:
    return torch.cat([pipeline.run(token) for token in ids.split(1)])


@pytest.mark.parametrize(
    ("variant", "scheme", "cache"),
    [
        ("llama", "f32", "full"),  # with two heads of keys, of which three ranks share one
        ("llama", "f32", "int8"),
        pytest.param(
            "llama", "int4", "int8", marks=pytest.mark.slow
        ),  # its heads are too small to be cut
        ("gemma 3", "bf16", "full"),
        ("qwen 3 next", "f32", "full"),
        ("deepseek 3.2", "f32", "full"),
        pytest.param("gemma 4 e2b", "f32", "full", marks=pytest.mark.slow),
        pytest.param("falcon h1", "f32", "full", marks=pytest.mark.slow),
        pytest.param("deepseek 4", "f32", "full", marks=pytest.mark.slow),
        pytest.param("qwen 4, n-grams", "f32", "full", marks=pytest.mark.slow),
        pytest.param("gpt-oss", "f32", "int8", marks=pytest.mark.slow),
    ],
)
def test_what_was_in_groups_meanwhile_goes_on_with_the_same_bits(
    make_reference: MakeReference,
    monkeypatch: pytest.MonkeyPatch,
    variant: str,
    scheme: Scheme,
    cache: Cache,
) -> None:
    """Of a whole model to two ranks, to three with other shares, and back."""
    monkeypatch.setattr(moved_parts, "PIECE", 300)  # some rows at once, and some values
    reference = make_reference(variant)
    ids = reference.prompt(80)
    first = pipeline(reference, (1,), (2,), scheme, cache)
    read(first, ids[:END])

    before, moved = first, list[int]()
    for parts, cuts in (((1, 1), (1, 3)), ((2, 1, 1), ()), ((1,), (3,))):
        after = pipeline(reference, parts, cuts, scheme, cache)
        moved.append(move(before, after))
        before = after

    assert torch.equal(answer(before, ids[END:]), answer(first, ids[END:]))


@pytest.mark.parametrize("variant", ["llama", "gemma 3", "qwen 3 next"])
def test_a_group_goes_on_with_what_a_whole_model_and_another_group_have_cached(
    make_reference: MakeReference, variant: str
) -> None:
    """It has the bits that it had: it computes on as the group does that was never asked."""
    reference = make_reference(variant)
    ids = reference.prompt(80)
    group, whole = pipeline(reference, (1, 1), (2,)), pipeline(reference, (1,), ())
    again = pipeline(reference, (1, 1), (1,))
    read(group, ids[:END])
    move(group, whole)
    move(whole, again)

    logits = answer(again, ids[END:])
    assert torch.equal(logits, answer(group, ids[END:]))
    assert difference(logits, reference.logits(ids)[END:]) < TOLERANCE


def test_heads_are_sent_once_and_only_to_who_has_them(make_reference: MakeReference) -> None:
    reference = make_reference("llama")
    ids = reference.prompt(END)
    whole, three = pipeline(reference, (1,), ()), pipeline(reference, (2, 1, 1), ())
    read(whole, ids)
    (stage,) = stages_of(whole)
    cached = sum(layer.both[:, :, :END].nbytes for layer in cache_of(stage).layers)
    ranks = list(stages_of(three))
    heads = [rank.shares.held(0)[0] for rank in ranks]
    assert heads == [((0, 1),), ((1, 2),), ((1, 2),)]

    assert move(whole, three) == cached * 3 // 2  # two ranks have the second head
    assert move(three, pipeline(reference, (1,), (2,))) == cached


def cache_of(stage: Stage) -> "moved_parts.SessionCache":
    return stage._sessions[SESSION].cache  # pyright: ignore[reportPrivateUsage]


def test_a_process_that_was_a_rank_gets_only_what_the_other_ranks_had(
    make_reference: MakeReference,
) -> None:
    reference = make_reference("llama")
    three = [rank.shares for rank in stages_of(pipeline(reference, (2, 1, 1), ()))]
    to = None
    assert [one.given(0, to)[0] for one in three] == [((0, 1),), ((1, 2),), ()]
    assert [one.given(0, to, had=2)[0] for one in three] == [((0, 1),), (), ()]
    assert three[0].given(0, Share(rank=1, parts=(1, 1)))[0] == ()
    latents = pipeline(make_reference("deepseek 3.2"), (1, 1), ())
    first, second = (rank.shares for rank in stages_of(latents))
    assert (first.given(0, to), second.given(0, to)) == ((((0, 1),),), ((),))
    assert first.given(0, to, had=1) == ((),)


def test_windows_of_ranks_that_were_not_equally_far_begin_where_all_have_them(
    make_reference: MakeReference,
) -> None:
    """A rank that has given a step up may have moved its window for it already."""
    reference = make_reference("gemma 3")
    ids = reference.prompt(80)
    group, same = (pipeline(reference, (1, 1), ()) for _ in range(2))
    for one in (group, same):
        read(one, ids[:END])
    for index in (0, 1):
        target = pipeline(reference, (1, 1), ())
        ahead = cache_of(list(stages_of(group))[index])
        ahead.begin_step(END, 16)
        ahead.trim(END)
        whole = pipeline(reference, (1,), ())
        move(group, whole)
        move(whole, target)
        assert torch.equal(answer(target, ids[END:]), answer(same, ids[END:]))
        same = pipeline(reference, (1, 1), ())
        read(same, ids[:END])


def test_a_state_that_comes_in_too_many_parts_is_refused(
    make_reference: MakeReference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coming_rows, "_MOST", 8)
    monkeypatch.setattr(moved_parts, "PIECE", 40)
    reference = make_reference("qwen 3 next")
    source, target = (pipeline(reference, (1,), ()) for _ in range(2))
    read(source, reference.prompt(END))
    (sending,), (receiving,) = stages_of(source), stages_of(target)
    state = [one for one in pieces(sending, receiving, 0, END) if one.layer == 0]
    rows = receiving.expect_rows(SESSION, 0, END, epoch=1)
    write_all(rows, state)  # one after the other
    again = receiving.expect_rows(SESSION, 0, END, epoch=1)
    with pytest.raises(InvalidStepError, match="too many parts"):
        write_all(again, state[::2])


def test_heads_that_a_stage_does_not_have_or_that_come_twice_are_refused(
    make_reference: MakeReference,
) -> None:
    reference = make_reference("llama")
    whole, group = pipeline(reference, (1,), ()), pipeline(reference, (1, 1), ())
    read(whole, reference.prompt(END))
    (sending,), (first, second) = stages_of(whole), stages_of(group)
    rows = second.expect_rows(SESSION, 0, END, epoch=1)
    for piece in pieces(sending, first, 0, END):
        with pytest.raises(InvalidStepError, match="does not have"):
            rows.write(piece)
    for piece in pieces(sending, second, 0, END):
        with pytest.raises(InvalidStepError, match="does not have"):
            rows.write(piece._replace(lane=0))
        rows.write(piece)
        with pytest.raises(InvalidStepError, match="not the next"):
            rows.write(piece)
    rows.finish()
    assert second.position(SESSION) == END
