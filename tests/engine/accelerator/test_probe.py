"""Operators that are right on a device are used; those that are wrong or missing are not."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch_forms import CpuForm, OffsetlessForm, StrangeForm, SwappedForm, TorchForm
from weight_formats import every_format

from potluck.engine.accelerator import probe
from potluck.engine.accelerator.aligned import AlignedAttention
from potluck.engine.accelerator.int4pack import CudaForm
from potluck.engine.accelerator.linears import BlockLinear, Int4Linear
from potluck.engine.accelerator.probe import (
    attends,
    choose_linear,
    find_int4_product,
    int4_obstacle,
    norms_work,
)
from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.kernels import ReferenceKernels
from potluck.engine.layers.attention import Attention, EagerAttention, ExpandedAttention, Span
from potluck.model.formats import INT4, PACKED_FORMATS, PackedFormat

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_product_that_is_right_is_found(dtype: torch.dtype) -> None:
    form = CpuForm()

    found = find_int4_product(CPU, dtype, form)

    assert found is not None
    assert found.form is form
    assert found.many_by_operator  # the order on a CPU is not known


def test_a_product_with_wrong_numbers_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    assert find_int4_product(CPU, torch.float32, SwappedForm()) is None
    assert "missing or wrong" in caplog.text


def test_a_product_that_is_missing_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    assert find_int4_product(CPU, torch.float32, CudaForm()) is None  # there is no such thing here
    assert "missing or wrong" in caplog.text


def test_a_format_with_wrong_numbers_is_unpacked_and_the_others_go_to_the_product(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(probe, "int4_form", lambda _: OffsetlessForm())
    packed = {held: ReferenceKernels().pack(torch.randn(16, 32), held) for held in PACKED_FORMATS}

    make = choose_linear(CPU, torch.float32)

    kinds = {held: type(make(weight, None)) for held, weight in packed.items()}
    assert kinds == dict.fromkeys(PACKED_FORMATS, BlockLinear) | {INT4: Int4Linear}
    assert "formats=int8,int4-offset,int4-super,mxfp4;" in caplog.text


def test_weights_in_an_unknown_order_are_left_to_the_operator() -> None:
    found = find_int4_product(CPU, torch.float32, StrangeForm())

    assert found is not None
    assert found.many_by_operator


def test_a_product_in_a_known_order_is_right_both_ways() -> None:
    form = TorchForm()

    assert find_int4_product(CPU, torch.float32, form) is not None
    assert form.products  # it was tried, and so was unpacking: `test_linears.py` has its numbers


def test_a_product_that_cannot_be_timed_for_want_of_memory_is_taken_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> bool:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(probe, "_is_faster", fail)

    found = find_int4_product(CPU, torch.float32, TorchForm())

    assert found is not None
    assert found.many_by_operator


@pytest.mark.parametrize(
    ("capability", "dtype", "is_hip", "is_tried"),
    [
        ((8, 0), torch.bfloat16, False, True),
        ((12, 0), torch.bfloat16, False, True),
        ((8, 6), torch.float16, False, False),
        ((7, 5), torch.bfloat16, False, False),
        ((7, 5), torch.bfloat16, True, True),
        (None, torch.float16, False, True),
    ],
)
def test_a_device_without_the_tensor_cores_is_not_even_tried(
    capability: tuple[int, int] | None,
    dtype: torch.dtype,
    is_hip: bool,
    is_tried: bool,
) -> None:
    assert (int4_obstacle(capability, dtype, is_hip=is_hip) is None) is is_tried


@every_format
def test_the_chosen_linear_multiplies(
    weight_format: PackedFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "int4_form", lambda _: CpuForm())
    weight = torch.randn(40, 64)
    packed = ReferenceKernels().pack(weight, weight_format)

    linear = choose_linear(CPU, torch.bfloat16)(packed, None)
    linear.place()

    x = torch.randn(3, 64).bfloat16()
    expected = x.float() @ packed.dequantise().t()
    assert isinstance(linear, Int4Linear if weight_format.codes is None else BlockLinear)
    assert ((linear(x).float() - expected).norm() / expected.norm()).item() < 0.01


def test_a_device_without_a_product_unpacks_weights_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    make = choose_linear(torch.device("meta"), torch.float16)

    linear = make(ReferenceKernels().pack(torch.randn(16, 32), INT4), None)

    assert isinstance(linear, BlockLinear)
    assert "unpacked for each product" in caplog.text


def test_a_cpu_has_all_operators() -> None:
    assert attends(Attention, CPU, torch.bfloat16)
    assert norms_work(CPU)


def test_a_device_that_gives_no_numbers_is_found_out() -> None:
    assert not attends(Attention, torch.device("meta"), torch.float32)
    assert not norms_work(torch.device("meta"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [Attention, ExpandedAttention, EagerAttention, AlignedAttention])
def test_attention_that_is_right_is_found(kind: type[Attention], dtype: torch.dtype) -> None:
    assert attends(kind, CPU, dtype)


class ContiguousAttention(Attention):
    """A kernel for one token that takes keys to stand head after head, as that of MPS in torch 2.8."""

    def _attend_one(self, q: Tensor, cache: LayerCache, span: Span) -> Tensor:
        read = cache.read(span.start, span.length, q.dtype)
        keys, values = (each.as_strided(each.shape, _contiguous(each.shape)) for each in read)
        q = q.view(1, self.num_kv_heads, -1, self.head_dim)
        out = F.scaled_dot_product_attention(q, keys, values, scale=self._scale)
        return out.view(1, -1)


def _contiguous(shape: torch.Size) -> tuple[int, ...]:
    return torch.empty(shape).stride()


class MissingAttention(Attention):
    """Attention by an operator that this version of torch does not have."""

    def _attend_many(self, q: Tensor, cache: LayerCache, span: Span, mask: Tensor | None) -> Tensor:
        raise NotImplementedError("not implemented for 'BFloat16'")


@pytest.mark.parametrize(
    ("kind", "said"), [(ContiguousAttention, "is wrong"), (MissingAttention, "not implemented")]
)
def test_attention_that_is_not_right_is_not_taken(
    kind: type[Attention], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    assert not attends(kind, CPU, torch.float32)
    assert said in caplog.text
