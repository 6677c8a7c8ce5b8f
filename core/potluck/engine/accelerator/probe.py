"""Try operators on the device at hand, and take those whose numbers are right.

Which operators a device has depends on its maker, its age and the version of torch, and an operator
that exists may give wrong numbers. So each is tried on a small problem with a known result. An
operator that fails is logged and not used. One that could leave the device unusable for this
process is not even tried.

This module has run on an H100. It has not run on MPS hardware.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.accelerator.int4pack import Int4Form, int4_form
from potluck.engine.accelerator.linears import BlockLinear, Int4Linear, MakeLinear, PlacedLinear
from potluck.engine.accelerator.nvidia.linear import NvidiaLinear
from potluck.engine.accelerator.nvidia.operators import NvidiaOperators, find_operators
from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.device import compute_capability
from potluck.engine.kernels import PackedWeight, ReferenceKernels
from potluck.engine.layers.attention import Attention, EagerAttention, Step
from potluck.engine.layers.linear import FloatLinear
from potluck.engine.layers.products import Products
from potluck.model.formats import INT4, PACKED_FORMATS, PackedFormat
from potluck.model.mixing.mixers import AttentionSpec

logger = logging.getLogger(__name__)

# What a missing operator raises; `NotImplementedError` is a `RuntimeError`.
_FAULTS = (RuntimeError, TypeError, AttributeError)
_TOLERANCE = 0.02  # relative error; bf16 has 0.003 here, a wrong order of the integers about 1
_INT4_CAPABILITY = (8, 0)  # tensor cores that take bf16
_ROWS = 48
_WIDTHS = (160, 256)  # compared; 8 bits take twice the width: 2, 4 and 8 tiles side by side
_TOKENS = (1, 40)
_TRIAL = 2048  # rows and width of the matrix that is timed
_TRIAL_TOKENS = 256
_ROUNDS = 3
_HEADS = (64, 80, 128)  # sizes; devices have kernels for 64 and 128, and none for 80
_WINDOW = 20
_CHUNKS = (9, 24, 1, 1)  # tokens of each step
_CAPACITY = 64


@dataclass(frozen=True, slots=True)
class Int4Product:
    """An int4 product, and the formats of weights for which it gives right numbers."""

    form: Int4Form
    formats: tuple[PackedFormat, ...]
    many_by_operator: bool  # whether it is used for many input rows too; else weights are unpacked


def choose_linear(device: torch.device, dtype: torch.dtype) -> MakeLinear:
    """Choose the way to make packed matrices of each format on this device, by trying: our own kernels first."""
    if (operators := find_operators(device, dtype)) is None:
        return _choose_torch(device, dtype)
    otherwise = cache(partial(_choose_torch, device, dtype))  # a mixture has thousands of matrices

    def make(weight: PackedWeight, bias: Tensor | None) -> PlacedLinear:
        if multiplies(operators, weight.format):
            return NvidiaLinear(weight, bias, operators=operators)
        return otherwise()(weight, bias)

    return make


@cache
def multiplies(operators: NvidiaOperators, held: PackedFormat) -> bool:
    """Whether our own kernels are right with this format. It is tried once."""
    ours = partial(NvidiaLinear, operators=operators)
    return _multiplies(ours, held, operators.device, operators.dtype)


def _choose_torch(device: torch.device, dtype: torch.dtype) -> MakeLinear:
    """The same with torch's products alone."""
    by_blocks = partial(BlockLinear, dtype=dtype, device=device)
    found = find_int4_product(device, dtype)
    formats = () if found is None else found.formats
    if lacking := [held.name for held in PACKED_FORMATS if held not in formats]:
        logger.warning(
            "packed weights are unpacked for each product device=%s dtype=%s formats=%s; 16 bits"
            " are faster there, if they fit",
            device,
            dtype,
            ",".join(lacking),
        )
    if found is None:
        return by_blocks
    by_operator = partial(
        Int4Linear,
        dtype=dtype,
        device=device,
        form=found.form,
        many_by_operator=found.many_by_operator,
    )

    def make(weight: PackedWeight, bias: Tensor | None) -> PlacedLinear:
        return (by_operator if weight.format in formats else by_blocks)(weight, bias)

    return make


@torch.inference_mode()
def find_int4_product(
    device: torch.device, dtype: torch.dtype, form: Int4Form | None = None
) -> Int4Product | None:
    """Torch's int4 product in this device's form, or in `form`, for formats that it computes right.

    None: it computes none of them right.
    """
    form = form or int4_form(device)
    obstacle = (
        "torch has none" if form is None else int4_obstacle(compute_capability(device), dtype)
    )
    if form is None or obstacle is not None:
        logger.info("no int4 product device=%s reason=%s", device, obstacle)
        return None
    make = partial(Int4Linear, dtype=dtype, device=device, form=form)
    by_operator, by_blocks = (partial(make, many_by_operator=is_so) for is_so in (True, False))
    evenly = [held for held in PACKED_FORMATS if held.codes is None]  # what the product can take
    right = tuple(held for held in evenly if _multiplies(by_operator, held, device, dtype))
    if not right:
        logger.warning("int4 product is missing or wrong device=%s dtype=%s", device, dtype)
        return None
    if not all(_multiplies(by_blocks, held, device, dtype) for held in right):
        logger.info("int4 weights stand in an unknown order and stay packed device=%s", device)
        return Int4Product(form, right, many_by_operator=True)
    try:
        is_faster = _is_faster((by_blocks, by_operator), device, dtype)
    except _FAULTS as fault:  # out of memory; the operator needs less of it than unpacking
        logger.info("int4 products are not timed device=%s reason=%s", device, _said(fault))
        is_faster = False
    return Int4Product(form, right, many_by_operator=not is_faster)


def int4_obstacle(
    capability: tuple[int, int] | None,
    dtype: torch.dtype,
    *,
    is_hip: bool = bool(torch.version.hip),
) -> str | None:
    """Why the int4 product of a CUDA device is not even tried; None: it is tried.

    An error there may leave the device unusable for this process. AMD's devices need no check of
    the compute capability: their conversion refuses devices without the product.
    """
    if capability is None:
        return None
    if dtype != torch.bfloat16:
        return "it takes bf16 alone"
    if not is_hip and capability < _INT4_CAPABILITY:
        return f"compute capability {capability[0]}.{capability[1]} has no tensor cores for it"
    return None


@torch.inference_mode()
def attends(kind: type[Attention], device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this attention matches the reference on a KV cache with the strides that layers have.

    For some sizes of heads, MPS has had kernels that treated any memory as contiguous (pytorch
    issues 163597, 181133).
    """
    for size, window in product(_HEADS, (None, _WINDOW)):
        spec = AttentionSpec(
            hidden_size=0,
            heads=6,
            kv_heads=2,
            head_dim=size,
            rotary_dim=size,
            window=window,
            scale=0.1,
        )
        expected = _attended(EagerAttention, spec, torch.device("cpu"), torch.float32)
        attended = partial(_attended, kind, spec, device, dtype)
        if not _gives(attended, expected, f"{kind.__name__} of {size}", device):
            return False
    return True


def _attended(
    kind: type[Attention], spec: AttentionSpec, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """The results of attention for chunks and single tokens, with earlier tokens in the cache."""
    generator = torch.Generator().manual_seed(0)
    nothing = FloatLinear(torch.empty(0), None, Products())
    attention = kind(spec, nothing, None, nothing)
    cache = LayerCache(spec.kv_heads, spec.head_dim, dtype, device)
    cache.resize(_CAPACITY, 0)
    outputs: list[Tensor] = []
    position = 0
    for tokens in _CHUNKS:
        shape = (tokens, spec.heads + 2 * spec.kv_heads, spec.head_dim)
        qkv = torch.randn(shape, generator=generator).to(device, dtype)
        cache.write(position, qkv[:, spec.heads :])
        step = Step(position, tokens, (), device)
        outputs.append(attention.attend(qkv[:, : spec.heads], cache, step))
        position += tokens
    return torch.cat(outputs)


@torch.inference_mode()
def norms_work(device: torch.device) -> bool:
    """Whether torch's norm is right for a slice of a tensor.

    MPS has normalised the first rows of a tensor when it was given other rows (pytorch issue
    131750).
    """
    numbers = torch.randn((3, 6, 32), generator=torch.Generator().manual_seed(0))
    weight = torch.linspace(0.5, 1.5, 32)
    some = numbers[1:, 1:5]
    expected = some * torch.rsqrt(some.square().mean(-1, keepdim=True) + 1e-6) * weight

    def norm() -> Tensor:
        return F.rms_norm(numbers.to(device)[1:, 1:5], (32,), weight.to(device), 1e-6)

    return _gives(norm, expected, "the norm", device)


def _multiplies(
    make: MakeLinear, held: PackedFormat, device: torch.device, dtype: torch.dtype
) -> bool:
    """Whether products with few and with many rows of inputs are right."""
    generator = torch.Generator().manual_seed(0)
    for width in _WIDTHS:
        weight = torch.randn((_ROWS, width), generator=generator)
        packed = ReferenceKernels().pack(weight, held)
        expected = packed.dequantise()
        try:
            linear = make(packed, None)
            linear.place()
        except _FAULTS as fault:
            logger.info("placing %s failed device=%s reason=%s", held.name, device, _said(fault))
            return False
        for tokens in _TOKENS:
            x = torch.randn((tokens, width), generator=generator).to(dtype)
            multiply = partial(_multiplied, linear, x, device)
            if not _gives(multiply, x.float() @ expected.t(), f"product of {held.name}", device):
                return False
    return True


def _multiplied(linear: PlacedLinear, x: Tensor, device: torch.device) -> Tensor:
    return linear(x.to(device))


def _gives(
    compute: Callable[[], Tensor], expected: Tensor, what: str, device: torch.device
) -> bool:
    try:
        error = (compute().cpu().float() - expected).norm() / expected.norm()
    except _FAULTS as fault:
        logger.info("%s failed device=%s reason=%s", what, device, _said(fault))
        return False
    if not error.item() < _TOLERANCE:  # NaN too
        logger.info("%s is wrong device=%s error=%.3g", what, device, error.item())
        return False
    return True


def _is_faster(ways: Sequence[MakeLinear], device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the first way multiplies many rows of inputs faster than the second."""
    weight = PackedWeight.empty(_TRIAL, _TRIAL, INT4)
    weight.data.zero_()
    linears = [make(weight, None) for make in ways]
    for linear in linears:
        linear.place()
    x = torch.ones((_TRIAL_TOKENS, _TRIAL), dtype=dtype, device=device)
    times = [[_seconds(linear, x) for linear in linears] for _ in range(_ROUNDS)]
    first, second = (min(column) for column in zip(*times, strict=True))
    return first < second


def _seconds(linear: PlacedLinear, x: Tensor) -> float:
    start = time.perf_counter()
    linear(x)[0, 0].item()  # waits until the device is done
    return time.perf_counter() - start


def _said(fault: Exception) -> str:
    return (str(fault).splitlines() or [type(fault).__name__])[0]
