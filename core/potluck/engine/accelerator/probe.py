"""Try on the device at hand what there may be, compare with what is known, and take what is right.

Which operators a device has depends on its maker, its age and the version of torch, and one that exists
may be wrong. So each is given a small problem first. What fails is noted in the log and done without.
Only an operator that would crash a device of this kind for good is ruled out beforehand.

On CUDA and MPS this has not run on real hardware.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.accelerator.int4pack import Int4Form, int4_form
from potluck.engine.accelerator.linears import BlockLinear, Int4Linear, MakeLinear, PlacedLinear
from potluck.engine.device import compute_capability
from potluck.engine.kernels import PackedWeight, ReferenceKernels
from potluck.engine.kernels.layout import packed_bytes

logger = logging.getLogger(__name__)

_FAULTS = (
    RuntimeError,
    TypeError,
    AttributeError,
    NotImplementedError,
)  # an operator that is not there
_TOLERANCE = 0.02  # relative error; bf16 has 0.003 here, another order of the integers about 1
_INT4_CAPABILITY = (8, 0)  # tensor cores that take bf16
_ROWS = 48
_WIDTHS = (160, 256)  # of what is compared; with 8 bits twice that: 2, 4 and 8 tiles side by side
_TOKENS = (1, 40)
_TRIAL = 2048  # rows and width of what is timed
_TRIAL_TOKENS = 256
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Int4Product:
    """An int4 product that gives right numbers."""

    form: Int4Form
    many_by_operator: bool  # whether it also takes many rows of inputs; else weights are unpacked


def choose_linear(device: torch.device, dtype: torch.dtype) -> MakeLinear:
    """How packed matrices, of 4 bits and of 8, are made on this device: by what was tried there."""
    found = find_int4_product(device, dtype)
    if found is None:
        logger.warning(
            "packed weights are unpacked for each product device=%s dtype=%s; 16 bits are faster"
            " there, if they fit",
            device,
            dtype,
        )
        return partial(BlockLinear, dtype=dtype, device=device)
    return partial(
        Int4Linear,
        dtype=dtype,
        device=device,
        form=found.form,
        many_by_operator=found.many_by_operator,
    )


@torch.inference_mode()
def find_int4_product(
    device: torch.device, dtype: torch.dtype, form: Int4Form | None = None
) -> Int4Product | None:
    """Torch's int4 product in the form of this device (or that form), if its numbers are right."""
    form = form or int4_form(device)
    obstacle = (
        "torch has none" if form is None else int4_obstacle(compute_capability(device), dtype)
    )
    if form is None or obstacle is not None:
        logger.info("no int4 product device=%s reason=%s", device, obstacle)
        return None
    make = partial(Int4Linear, dtype=dtype, device=device, form=form)
    by_operator, by_blocks = (partial(make, many_by_operator=is_so) for is_so in (True, False))
    if not all(_multiplies(by_operator, bits, device, dtype) for bits in (4, 8)):
        logger.warning("int4 product is missing or wrong device=%s dtype=%s", device, dtype)
        return None
    if not all(_multiplies(by_blocks, bits, device, dtype) for bits in (4, 8)):
        logger.info("int4 weights stand in an unknown order and stay packed device=%s", device)
        return Int4Product(form, many_by_operator=True)
    is_faster = _is_faster((by_blocks, by_operator), device, dtype)
    return Int4Product(form, many_by_operator=not is_faster)


def int4_obstacle(
    capability: tuple[int, int] | None,
    dtype: torch.dtype,
    *,
    is_hip: bool = bool(torch.version.hip),
) -> str | None:
    """Why the int4 product of a CUDA device is not even tried: an error there may stay.

    AMD's devices say themselves which they are, when they are asked to convert.
    """
    if capability is None:
        return None
    if dtype != torch.bfloat16:
        return "it takes bf16 alone"
    if not is_hip and capability < _INT4_CAPABILITY:
        return f"compute capability {capability[0]}.{capability[1]} has no tensor cores for it"
    return None


@torch.inference_mode()
def shares_keys(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether attention takes fewer heads of keys than of queries."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn((1, heads, 8, 32), generator=generator) for heads in (4, 2, 2))
    expected = F.scaled_dot_product_attention(
        q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), is_causal=True
    )

    def attend() -> Tensor:
        queries, keys, values = (each.to(device, dtype) for each in (q, k, v))
        return F.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, enable_gqa=True
        )

    return _gives(attend, expected, "attention with shared keys", device)


@torch.inference_mode()
def aligns_queries(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether causal attention is right where tokens stand before the first query."""
    from torch.nn.attention.bias import causal_lower_right  # see `aligned.py`

    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn((1, heads, tokens, 32), generator=generator)
        for heads, tokens in ((4, 8), (2, 24), (2, 24))
    )
    mask = torch.ones((8, 24), dtype=torch.bool).tril_(16)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    def attend() -> Tensor:
        queries, keys, values = (each.to(device, dtype) for each in (q, k, v))
        return F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=causal_lower_right(8, 24), enable_gqa=True
        )

    return _gives(attend, expected, "causal attention after other tokens", device)


@torch.inference_mode()
def norms_work(device: torch.device) -> bool:
    """Whether the norm of numbers is right that stand among others in memory.

    MPS has normalised the first rows of a tensor where it was given others (pytorch issue 131750).
    """
    numbers = torch.randn((3, 6, 32), generator=torch.Generator().manual_seed(0))
    weight = torch.linspace(0.5, 1.5, 32)
    some = numbers[1:, 1:5]
    expected = some * torch.rsqrt(some.square().mean(-1, keepdim=True) + 1e-6) * weight

    def norm() -> Tensor:
        return F.rms_norm(numbers.to(device)[1:, 1:5], (32,), weight.to(device), 1e-6)

    return _gives(norm, expected, "the norm", device)


def _multiplies(make: MakeLinear, bits: int, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether products with few and with many rows of inputs are right."""
    generator = torch.Generator().manual_seed(0)
    for width in _WIDTHS:
        weight = torch.randn((_ROWS, width), generator=generator)
        packed = ReferenceKernels().pack(weight, bits)
        expected = packed.dequantise()
        try:
            linear = make(packed, None)
            linear.place()
        except _FAULTS as fault:
            logger.info("placing %d bits failed device=%s reason=%s", bits, device, _said(fault))
            return False
        for tokens in _TOKENS:
            x = torch.randn((tokens, width), generator=generator).to(dtype)
            product = partial(linear, x.to(device))
            if not _gives(product, x.float() @ expected.t(), f"product of {bits} bits", device):
                return False
    return True


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
    nothing = torch.zeros(packed_bytes(_TRIAL, _TRIAL, 4), dtype=torch.uint8)
    linears = [make(PackedWeight(nothing, _TRIAL, _TRIAL, 4), None) for make in ways]
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
