"""Ranks of a group compute together what one would compute alone."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cut_tensors import cut
from fake_ranks import Meeting, RankedReference, RankedStage
from fast_families import SPECIFIED
from gguf_writer import write_gguf
from prequantised import prequantised
from tiny_models import CPU, SESSION, Pipeline, Reference, difference, loaded, make_model, off

from potluck.engine.generated.run import GeneratedRun
from potluck.engine.kernels import PackedWeight
from potluck.engine.layers.linear import PackedLinear
from potluck.engine.layers.mlp import PackedMlp
from potluck.engine.loading.weights import load_weights
from potluck.engine.rank_sums.ranks import SumCallback
from potluck.engine.stage import Stage
from potluck.errors import RankLostError
from potluck.model.schemes import Scheme
from potluck.model.shares import Share, layer_slices
from potluck.store.registry import open_model

MakeReference = Callable[..., Reference]

TOKENS = 24  # more than any window of the variants, so that windows show
IN_PIECES = (18, 1, 1, 1, 1, 1, 1)
TOLERANCE = 1e-4  # of the largest logit: sums are added in another order than by one rank
# Sizes of which two ranks, and three, have whole blocks of packed formats.
WIDE = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "head_dim": 16,
    "num_attention_heads": 12,
    "num_key_value_heads": 6,
}


@pytest.mark.usefixtures("torch_alone")
@pytest.mark.parametrize("variant", SPECIFIED)
def test_two_ranks_have_the_logits_of_the_whole(
    make_reference: MakeReference, variant: str
) -> None:
    """A prompt comes in chunks and single tokens; all ranks have the same bits after each. Each has its slices alone."""
    reference = make_reference(variant)
    ids = reference.prompt(TOKENS)

    ranks = RankedReference.of(reference, (1, 1), is_cut=True)
    logits = Pipeline(ranks).run_in_pieces(ids, IN_PIECES)

    assert difference(logits, reference.logits(ids)) < TOLERANCE


@pytest.mark.parametrize(
    ("variant", "parts"),
    [
        *(
            (one, (1, 1))
            for one in ("llama, biases", "gemma 2", "qwen 3 moe", "gpt-oss", "command r")
        ),
        *(
            pytest.param(one, (2, 1, 1), marks=pytest.mark.slow)
            for one in ("llama, biases", "qwen 3 moe", "gemma 4, experts")
        ),
    ],
)
def test_generated_layers_of_ranks_have_the_logits_of_the_whole(
    make_reference: MakeReference, variant: str, parts: tuple[int, ...]
) -> None:
    """With two heads of keys, of which three ranks share one; a token alone has the bits that it has in a chunk."""
    reference = make_reference(variant)
    ids, ranks = reference.prompt(TOKENS), RankedReference.of(reference, parts)

    pipeline = Pipeline(ranks, [1])
    logits = pipeline.run_in_pieces(ids, IN_PIECES)

    assert difference(logits, reference.logits(ids)) < TOLERANCE
    pipeline.restart()
    assert torch.equal(pipeline.run(ids), logits)
    groups: Sequence[object] = pipeline.stages
    for stage in (
        one for group in groups if isinstance(group, RankedStage) for one in group.stages
    ):
        assert all(isinstance(run, GeneratedRun) for run in stage.weights.runs)
        assert all(block.spec.sums_mixer for block in stage.weights.blocks)
        assert all(block.spec.sums_feed_forward for block in stage.weights.blocks)


@pytest.mark.parametrize("parts", [(1, 1), (1, 3, 1)])
def test_packed_slices_are_those_of_what_is_packed_whole(
    tmp_path: Path, parts: tuple[int, ...]
) -> None:
    scheme: Scheme = "int8"
    reference = make_model("llama, biases", tmp_path, changes=WIDE)
    whole = _matrices(reference, None, scheme)

    for rank in range(len(parts)):
        share = Share(rank=rank, parts=parts)
        slices = layer_slices(reference.config, 0, share, scheme)
        for name, own in _matrices(reference, share, scheme).items():
            values, part = whole[name], slices[f"model.layers.0.{name}.weight"]
            axis = 0 if part.axis == "rows" else 1
            pieces = [values.narrow(axis, first, last - first) for first, last in part.ranges]
            expected = torch.cat(pieces, axis)
            if scheme == "int8" or part.axis == "rows":
                assert torch.equal(own, expected)
            else:  # these columns end within super-blocks, and are packed anew
                assert off(own, expected) < 0.15


SUPER = {
    **WIDE,
    "hidden_size": 256,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 32,
    "num_hidden_layers": 1,
}


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [("F32", "int4"), ("packed", "int4"), ("Q4_K", "int4-offset"), ("Q4_0", "int4")],
)
def test_a_rank_has_of_its_slices_what_it_has_of_the_whole(
    tmp_path: Path, kind: str, scheme: Scheme
) -> None:
    """In shares that end within super-blocks too, of files whose heads have their rows in pairs."""
    reference = make_model("llama, biases", tmp_path, changes=SUPER)
    stored = prequantised(reference, scheme, tmp_path) if kind == "packed" else reference
    if kind.startswith("Q"):
        file = write_gguf(tmp_path, tmp_path / "model.gguf", kind=kind)
        stored = loaded(open_model(file, cache_dir=tmp_path / "cache"), reference)
    for parts in ((1, 1), (7, 3)):
        share = Share(rank=1, parts=parts)
        whole = _matrices(stored, share, scheme)

        tensors = cut(stored.tensors, stored.config, share, scheme, tmp_path)
        own = _matrices(replace(stored, tensors=tensors), share, scheme)

        assert sum(tensor.is_slice for tensor in tensors) >= 7
        assert all(torch.equal(own[name], whole[name]) for name in whole)


def _matrices(reference: Reference, share: Share | None, scheme: Scheme) -> dict[str, torch.Tensor]:
    """The values of the first layer's matrices, as they are loaded."""
    weights = load_weights(
        reference.config,
        range(1),
        embedding=False,
        head=False,
        tensors=reference.tensors,
        scheme=scheme,
        device=CPU,
        share=share,
    )
    (block,) = weights.blocks
    made: dict[str, torch.Tensor] = {}
    assert isinstance(block.mlp, PackedMlp)
    linears = (*block.mixer_matrices, block.mlp.gate_up, block.mlp.down)
    for projection, linear in zip(block.spec.projections, linears, strict=True):
        assert isinstance(linear, PackedLinear)
        weight: PackedWeight = linear.weight
        parts = weight.dequantise().split(projection.rows)
        made |= dict(zip(projection.parts, parts, strict=True))
    return made


def test_packed_ranks_compute_nearly_what_the_whole_computes(tmp_path: Path) -> None:
    """Inputs are rounded to 8 bits, and a sum in another order may round one to the next integer."""
    reference = make_model("llama, biases", tmp_path, changes=WIDE)
    ids = reference.prompt(TOKENS)
    whole = Pipeline(reference, scheme="int8").run_in_pieces(ids, IN_PIECES)

    pipeline = Pipeline(RankedReference.of(reference, (1, 2)), scheme="int8")
    logits = pipeline.run_in_pieces(ids, IN_PIECES)

    # Half of what rounding inputs may cost (`test_packed_stages.py`).
    assert off(logits, whole) < 0.04
    pipeline.restart()
    assert torch.equal(pipeline.run(ids), logits)


def test_slices_of_whole_super_blocks_are_those_of_what_is_packed_whole(tmp_path: Path) -> None:
    """Their blocks share steps of scales. Sizes of models are such that large slices end with one."""
    sizes = {"intermediate_size": 4096, "num_hidden_layers": 1}
    reference = make_model("llama, biases", tmp_path, changes=WIDE | sizes)
    share = Share(rank=1, parts=(3, 2))
    (part,) = layer_slices(reference.config, 0, share, "int4")[
        "model.layers.0.mlp.down_proj.weight"
    ].ranges

    own = _matrices(reference, share, "int4")["mlp.down_proj"]

    assert part == (2560, 4096)
    assert torch.equal(own, _matrices(reference, None, "int4")["mlp.down_proj"][:, slice(*part)])


def test_a_whole_stage_of_ranks_takes_a_token_in_one_call_and_chooses_the_same(
    tmp_path: Path,
) -> None:
    reference = make_model("llama, biases", tmp_path, changes=WIDE)
    meeting = Meeting(2)
    stages: list[Stage] = []
    for exchange in meeting.exchanges():
        weights = load_weights(
            reference.config, range(4), embedding=True, head=True, tensors=reference.tensors,
            scheme="int8", device=CPU, share=Share(rank=exchange.rank, parts=(1, 1)),
        )  # fmt: skip
        stages.append(Stage(weights, context=96, cache_budget=1 << 24, epoch=1, exchange=exchange))
    group = RankedStage(stages)
    group.open(SESSION, epoch=1)

    for position, token in enumerate(reference.prompt(5)[:, None]):
        group.each(
            lambda stage, position=position, token=token: stage.forward(
                SESSION, token, epoch=1, step=position, position=position
            )
        )

    assert meeting.sums == 5 * 4 * 2  # of a token, after the mixer and the MLP of each layer


def test_threads_are_woken_after_a_sum_and_an_error_is_raised_when_the_call_has_ended() -> None:
    """A function that generated code calls cannot raise; what comes after it in the same call is not summed."""
    (exchange,) = Meeting(1).exchanges()
    woken: list[bool] = []
    numbers = torch.tensor([1.0, 2.0])
    callback = SumCallback(exchange, lambda: woken.append(True))
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    call = function(callback.address)

    call(None, numbers.data_ptr(), 2)
    callback.check()
    assert woken == [True]

    exchange.abort()
    call(None, numbers.data_ptr(), 2)
    call(None, numbers.data_ptr(), 2)
    with pytest.raises(RankLostError):
        callback.check()
    callback.check()  # the next step may be done, if all ranks begin it anew
    assert woken == [True]


def test_a_rank_that_fails_in_a_step_fails_the_step_of_the_others(
    make_reference: MakeReference, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = RankedReference.of(make_reference("llama"), (1, 1))
    group = reference.stage(head=False)
    group.open(SESSION, epoch=1)
    ids = reference.prompt(6)
    broken = group.stages[1].weights.blocks[2]
    assert isinstance(group, RankedStage)

    def step(stage: Stage) -> Exception | None:
        try:
            stage.forward(SESSION, ids, epoch=1, step=0, position=0)
        except (RankLostError, AttributeError) as error:
            return error
        return None

    monkeypatch.setattr(broken, "mixer", object())  # what comes there is an error

    lost, failed = group.each(step)

    assert isinstance(lost, RankLostError)
    assert isinstance(failed, AttributeError)
    assert [stage.position(SESSION) for stage in group.stages] == [0, 0]
