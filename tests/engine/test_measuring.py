"""A stage's parts are timed, and its weights counted."""

from collections.abc import Callable

import pytest
import torch
from tiny_models import CPU, Reference

from potluck.engine.kernels import ReferenceKernels
from potluck.engine.loading.weights import random_weights
from potluck.engine.measuring import StageMeter, _Reader
from potluck.engine.stage import Stage
from potluck.errors import OutOfMemoryError
from potluck.ids import SessionId
from potluck.model.config import ModelConfig
from potluck.model.schemes import Scheme
from potluck.model.tensor_formats import tensor_bytes
from potluck.wire.activation_messages import Sampling

MakeReference = Callable[..., Reference]


def make_stage(
    config: ModelConfig, scheme: Scheme, *, layers: range | None = None, head: bool = True
) -> Stage:
    chosen = range(config.num_layers) if layers is None else layers
    weights = random_weights(
        config, chosen, embedding=False, head=head, scheme=scheme, device=CPU, seed=1
    )
    return Stage(weights, context=512, cache_budget=1 << 30)


@pytest.mark.parametrize(
    ("variant", "scheme"),
    [
        ("llama", "f32"),
        ("llama, whole blocks", "bf16"),
        ("llama, whole blocks", "int4"),
        ("gemma 2", "int8"),
        ("qwen 3 moe", "int4"),
    ],
)
def test_every_part_of_a_token_is_timed(
    make_reference: MakeReference, variant: str, scheme: Scheme
) -> None:
    stage = make_stage(make_reference(variant).config, scheme)

    times = StageMeter(stage, 40).round()

    assert times.layers_ms > 0
    assert times.head_ms > 0
    assert times.read_bytes_per_s > 0


@pytest.mark.parametrize("scheme", ["f32", "int8"])
def test_a_window_has_the_rows_that_it_would_have_at_the_position(
    make_reference: MakeReference, scheme: Scheme
) -> None:
    weights = make_stage(make_reference("gemma 3").config, scheme).weights
    stage = Stage(weights, context=512, cache_budget=1 << 30, chunk=12, slack=16)

    meter = StageMeter(stage, 300)

    held = [(cache.first, cache.rows) for cache in meter._caches]
    first = 300 + 16 // 4 - 23  # as if the rows had moved for this token
    assert held == [(first, 23), (first, 23), (0, 301)] * 2
    assert meter.round().layers_ms > 0


@pytest.mark.parametrize("scheme", ["f32", "bf16", "int8", "int4"])
def test_the_bytes_are_those_of_the_matrices(llama: Reference, scheme: Scheme) -> None:
    config = llama.config

    meter = StageMeter(make_stage(config, scheme), 0)

    tensors = config.stage_tensors(range(config.num_layers), embedding=False, head=True)
    matrices = {name: shape for name, shape in tensors.items() if len(shape) == 2}
    expected = sum(tensor_bytes(config, *matrix, scheme) for matrix in matrices.items())
    assert meter.weight_bytes == expected


def test_of_experts_those_count_that_a_token_goes_through(make_reference: MakeReference) -> None:
    config = make_reference("qwen 3 moe").config
    assert config.experts is not None

    meter = StageMeter(make_stage(config, "f32", head=False), 0)

    total = 0.0
    for layer in range(config.num_layers):
        for name, shape in config.layer_tensors(layer).items():
            if len(shape) == 2 and not config.is_router(name):
                share = config.experts.part
                nbytes = tensor_bytes(config, name, shape, "f32")
                total += nbytes * (share if ".experts." in name else 1)
    assert meter.weight_bytes == pytest.approx(total)


def test_a_stage_without_a_head_has_no_time_of_one(llama: Reference) -> None:
    stage = make_stage(llama.config, "int8", layers=range(1, 2), head=False)

    assert StageMeter(stage, 8).round().head_ms == 0


@pytest.mark.parametrize("scheme", ["f32", "int4"])
def test_several_threads_read_all_of_the_weights(llama: Reference, scheme: Scheme) -> None:
    stage = make_stage(llama.config, scheme)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        meter = StageMeter(stage, 8)
    finally:
        torch.set_num_threads(threads)

    assert meter.read_bytes == meter.weight_bytes  # without experts, a token reads all of them
    assert (
        meter.round().cache_bytes
        == sum(spec.read_bytes(meter.position + 1) for spec in meter._stage.caches)
        > 0
    )
    assert meter.round().read_bytes_per_s > 0


def test_sessions_are_left_as_they_are(llama: Reference) -> None:
    stage, chat = make_stage(llama.config, "int4"), SessionId("chat")
    hidden = torch.randn(6, llama.config.hidden_size)
    stage.open(chat, epoch=0)
    stage.forward(chat, hidden[:5], epoch=0, step=1, position=0)
    asked = Sampling(logprobs=3)

    expected = stage.forward(chat, hidden[5:], epoch=0, step=2, position=5, sampling=asked)
    stage.trim(chat, 5, epoch=0)
    StageMeter(stage, 30).round()

    assert stage.position(chat) == 5
    answer = stage.forward(chat, hidden[5:], epoch=0, step=3, position=5, sampling=asked)
    assert answer == expected


@pytest.mark.parametrize("scheme", ["bf16", "int8"])
def test_a_computer_without_generated_kernels_is_measured_too(
    llama: Reference, monkeypatch: pytest.MonkeyPatch, scheme: Scheme
) -> None:
    for module in ("potluck.engine.loading.matrices", "potluck.engine.measuring"):
        monkeypatch.setattr(f"{module}.best_kernels", lambda **_: ReferenceKernels())

    times = StageMeter(make_stage(llama.config, scheme), 12).round()

    assert times.layers_ms > 0
    assert times.read_bytes_per_s > 0


def test_of_a_large_model_a_part_tells_how_fast_it_is_read(llama: Reference) -> None:
    stage = make_stage(llama.config, "int8")
    whole = StageMeter(stage, 8)

    part = StageMeter(stage, 8, enough=whole.read_bytes // 2)

    assert whole.read_bytes // 2 <= part.read_bytes < whole.read_bytes
    assert part.weight_bytes == whole.weight_bytes


def test_a_gpu_reads_much_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small matrix is read faster than a call to a GPU takes."""
    matrices = [torch.ones(64, dtype=torch.uint8, device="meta")] * 3
    matrices.append(torch.ones(1 << 40, dtype=torch.uint8, device="meta"))
    zeros = torch.zeros
    monkeypatch.setattr("potluck.engine.measuring.synchronize", lambda _: None)
    monkeypatch.setattr(torch, "zeros", lambda size, dtype, device: zeros(size, dtype=dtype))

    reader = _Reader(matrices, torch.device("cuda"), 1)

    assert reader.nbytes == 1 << 28
    assert reader() > 0
    assert _Reader(matrices[:3], torch.device("cuda"), 1).nbytes == 3 * 64


def test_the_fastest_way_to_read_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def taking(seconds: float) -> Callable[[torch.Tensor], None]:
        def read(part: torch.Tensor) -> None:
            nonlocal now
            assert len(part) == 1 << 14
            now += seconds

        return read

    ways = [taking(2.0), taking(1.0), taking(3.0)]
    monkeypatch.setattr("potluck.engine.measuring._ways_to_read", lambda: ways)
    monkeypatch.setattr("potluck.engine.measuring.time.perf_counter", lambda: now)

    reader = _Reader([torch.zeros(1 << 14, dtype=torch.uint8)], CPU, 1)

    assert reader() == 1 << 14


def test_a_cache_that_has_no_room_is_an_error_of_its_own(
    llama: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("potluck.engine.caches.kvcache.LayerCache.resize", full)
    with pytest.raises(OutOfMemoryError):
        StageMeter(make_stage(llama.config, "f32"), 8)
