"""A token has the same bits however tokens are cut into steps, layers into stages, and what is replayed or
shared with another session."""

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from chosen_kernels import compute_with
from kernel_paths import BEST
from layer_values import kernel_values, lacking
from tiny_models import SESSION, Pipeline, make_model, whole_blocks
from torch import Tensor

from potluck.engine.kernels.called.generated import GeneratedKernels, host_paths
from potluck.ids import SessionId
from potluck.model.schemes import PACKED_SCHEMES, Cache, Scheme

CONTEXT = 330
LONG, SHORT = 300, 90  # more than a panel of cached tokens, and more than any window
CHUNK = 200
SLACK = 20  # so that the rows of windows are moved often
# The layers of the first are generated; those that are not whole blocks go through torch, also one by one.
FAST: list[tuple[str, bool, Scheme, Cache]] = [
    ("llama, biases", True, "int8", "full"),
    ("gemma 2", True, "int4", "int8"),
    ("llama, biases", True, "f32", "full"),
    ("deepseek 3.2", True, "int4", "int8"),
    ("qwen 3.5", True, "int8", "full"),
    ("llama 4 scout", True, "int4", "full"),
    ("granite 4", True, "int8", "full"),
    ("nemotron h", True, "int8", "full"),
    ("mimo 2 flash", True, "int8", "int8"),
]
SLOW: list[tuple[str, bool, Scheme, Cache]] = [
    ("gemma 3", False, "int4-head8", "full"),
    ("deepseek 2 lite", True, "f32", "int8"),
    ("glm 5.2", True, "f32", "full"),
    ("kimi linear", True, "int8", "full"),
    ("glm 5.3, text of a model with pictures", True, "f32", "full"),
    ("minimax m3, text of a model with pictures", True, "int4", "int8"),
]
# Shorter texts, for what is cached and seen as in one of those above, or chosen by torch, which has no panels.
SHORTER: list[tuple[str, bool, Scheme, Cache]] = [
    ("qwen 4, n-grams", True, "int4", "full"),
    ("deepseek 4", True, "int4", "int8"),
    ("gemma 4 e2b", True, "int8", "int8"),
    ("qwen 3 moe, some layers, odd", True, "int4-offset", "full"),
    ("qwen 3 next, odd", False, "f32", "int8"),
    ("qwen 3 next, odd", False, "int4", "full"),
]
# What kernels are written for in these and those above is all that they are written for in any family.
FAMILIES = [
    "phi 4 mini, short, partial", "olmo 2, no shared key heads, bias", "gpt-oss", "qwen 3 next",
    "nemotron h, narrow experts", "nemotron h, dense, biases", "lfm 2 moe", "apertus", "command a+",
    "falcon h1", "falcon h1, normed", "starcoder 2", "phi 3.5 moe", "kolibri 1",
    "gemma 4, embeddings of layers alone", "gemma 4, experts", "gemma 2, one key head, odd", "laguna",
    "muse glimmer, text of a model with pictures", "step 3.7, text of a model with pictures",
]  # fmt: skip
# Each family in one of the schemes: what a layer computes and how its matrices are held are written apart.
SCHEMES: list[Scheme] = [*PACKED_SCHEMES, "f32"]
EACH: list[tuple[str, bool, Scheme, Cache]] = [
    *SHORTER,
    *(
        (family, True, SCHEMES[index % len(SCHEMES)], "full")
        for index, family in enumerate(FAMILIES)
    ),
]
GENERIC: list[tuple[str, bool, Scheme, Cache]] = [FAST[1], SLOW[1]]
CASES = [
    *((*case, BEST.name) for case in (*FAST, *SLOW, *EACH)),
    *((*case, host_paths()[-1].name) for case in GENERIC),
]


def _marked(case: tuple[str, bool, Scheme, Cache, str]) -> object:
    is_fast = case[:-1] in FAST and case[-1] == BEST.name
    marks = () if is_fast else pytest.mark.slow
    return pytest.param(*case, id=f"{case[0]}-{case[2]}-{case[4]}", marks=marks)


def some_sizes(rng: random.Random, tokens: int) -> list[int]:
    """Cut so many tokens into steps, of which many have one token."""
    sizes = list[int]()
    while (left := tokens - sum(sizes)) > 0:
        sizes.append(min(left, rng.choice([1, 1, 1, 2, 3, 8, 13, 40, CHUNK])))
    return sizes


def some_cuts(rng: random.Random, layers: int) -> Sequence[int]:
    return sorted(rng.sample(range(1, layers), rng.randrange(layers)))


def test_these_families_have_all_that_kernels_are_written_for() -> None:
    assert not lacking({case[0] for case in CASES if case[1]}, kernel_values)


@pytest.mark.parametrize(
    ("variant", "is_generated", "scheme", "cache", "path"), [_marked(case) for case in CASES]
)
def test_steps_stages_replays_forks_and_threads_change_no_bit(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    variant: str,
    is_generated: bool,
    scheme: Scheme,
    cache: Cache,
    path: str,
) -> None:
    changes = whole_blocks(variant) if is_generated else {}
    reference = make_model(variant, tmp_path, changes=changes)
    tokens = SHORT if (variant, is_generated, scheme, cache) in EACH else LONG
    rng, ids = random.Random(f"{variant} {scheme}"), reference.prompt(tokens)
    kernels = next(partial(GeneratedKernels, one) for one in host_paths() if one.name == path)

    def pipeline(cuts: Sequence[int], threads: int) -> Pipeline:
        made = kernels(threads)
        with monkeypatch.context() as patch:
            compute_with(patch, made)
            return Pipeline(
                reference, cuts, scheme, cache, context=CONTEXT, chunk=CHUNK, slack=SLACK
            )

    one_by_one = pipeline([], 1).run_in_pieces(ids, [1] * tokens)
    other = reference.prompt(tokens, seed=1)

    for threads in (1, 2):
        stages = pipeline(some_cuts(rng, reference.config.num_layers), threads)
        assert all(stage.is_exact_in_chunks for stage in stages.stages)
        got = stages.run_in_pieces(ids, some_sizes(rng, tokens))
        assert torch.equal(got, one_by_one)

        stages.trim(tokens - rng.randrange(1, SLACK))
        replayed = stages.position
        again = stages.run_in_pieces(ids[replayed:], some_sizes(rng, tokens - replayed))
        assert torch.equal(again, one_by_one[replayed:])

        for name, prompt in (("other", other), ("same", ids)):  # the first must change nothing
            stages.fork(SessionId(name), tokens - rng.randrange(1, SLACK))
            forked = stages.position
            again = stages.run_in_pieces(prompt[forked:], some_sizes(rng, tokens - forked))
            stages.turn_to(SESSION)
        assert torch.equal(again, one_by_one[forked:])
        stages.trim(tokens - 2)
        again = stages.run_in_pieces(ids[stages.position :], [1] * (tokens - stages.position))
        assert torch.equal(again[-2:], one_by_one[-2:])


@pytest.mark.parametrize("scheme", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("is_generated", [True, False])
def test_a_session_that_begins_like_another_has_the_bits_of_one_that_was_trimmed(
    tmp_path: Path, scheme: Scheme, is_generated: bool
) -> None:
    changes = whole_blocks("gemma 3") if is_generated else {}
    reference = make_model("gemma 3", tmp_path, changes=changes)
    before, after, more = (reference.prompt(tokens, seed=tokens) for tokens in (40, 12, 20))
    shared, sizes = 33, [9, *[1] * 11]

    alone = Pipeline(reference, [3], scheme)
    alone.run_in_pieces(before, [30, 1, 9])
    alone.trim(shared)
    expected = alone.run_in_pieces(more, sizes)
    stages = Pipeline(reference, [3], scheme)
    stages.run_in_pieces(before, [30, 1, 9])
    stages.fork(SessionId("fork"), shared)

    assert stages.position == shared
    assert torch.equal(stages.run_in_pieces(more, sizes), expected)
    stages.turn_to(SESSION)
    alone.restart()
    alone.run_in_pieces(before, [30, 1, 9])
    assert torch.equal(stages.run(after), alone.run(after))


@pytest.mark.parametrize("scheme", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("is_generated", [True, False])
def test_the_same_steps_give_the_same_bits_wherever_layers_are_cut(
    tmp_path: Path, scheme: Scheme, is_generated: bool
) -> None:
    changes = whole_blocks("gemma 3") if is_generated else {}
    reference = make_model("gemma 3", tmp_path, changes=changes)
    ids, sizes = reference.prompt(60), [30, 1, 1, 5, 3, *[1] * 20]

    answers = [
        Pipeline(reference, cuts, scheme).run_in_pieces(ids, sizes)
        for cuts in ([], [3], [1, 2, 4], [1, 5])
    ]

    assert all(torch.equal(answers[0], other) for other in answers[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "is_generated", "scheme"),
    [
        ("gemma 2", True, "f32"),
        ("qwen 3 moe, some layers, odd", True, "int4-offset"),
        ("gemma 3", False, "int4-head8"),
        ("deepseek 3.2", True, "int8"),
    ],
)
def test_every_kind_of_processor_has_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    variant: str,
    is_generated: bool,
    scheme: Scheme,
) -> None:
    """A path stands for the processors that have no better one."""
    changes = whole_blocks(variant) if is_generated else {}
    reference = make_model(variant, tmp_path, changes=changes)
    ids, logits = reference.prompt(60), list[Tensor]()

    for path in host_paths():
        compute_with(monkeypatch, GeneratedKernels(path))
        one = Pipeline(reference, [], scheme)
        logits.append(one.run_in_pieces(ids, [40, *[1] * 20]))

    assert all(torch.equal(logits[0], other) for other in logits[1:])


def test_a_head_has_the_same_bits_for_one_token_and_for_many(tmp_path: Path) -> None:
    reference = make_model("gemma 2", tmp_path, changes=whole_blocks("gemma 2"))
    head = reference.stage(4, 4, embedding=False, scheme="int4").head
    assert head is not None
    hidden = torch.randn(5, 64)

    with torch.inference_mode():
        many = head.logits(hidden)

    for row, logits in zip(hidden, many, strict=True):
        assert torch.equal(head.next_logits(row[None])[0], logits)


@pytest.mark.parametrize("scheme", ["f32", "bf16", "int8"])
def test_stages_that_a_library_computes_in_are_not_exact_in_chunks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scheme: Scheme
) -> None:
    compute_with(monkeypatch)

    assert not make_model("llama", tmp_path).stage(scheme=scheme).is_exact_in_chunks
