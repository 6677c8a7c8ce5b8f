"""x Wᵀ + b in plain numbers, by the way that is the fastest on this device.

On a CPU there are several ways, and the processor decides which is the fastest. Measured on one
core of an AVX-512 machine with weights of 16 bits: for one row of input, torch reads 9 to 16 GB/s
of weights and a generated kernel 35 GB/s; for 8 rows and 8 MB of weights, f16 takes torch 2.8 ms
and the kernel 0.5 ms, and bf16 takes both 0.5 ms. On a processor without 16-bit arithmetic (AVX2),
a chunk of 128 rows takes 404 ms with the weights as they are, and 127 ms if they are converted to
f32 block by block. So the ways are tried when weights are made, which takes one or two tenths of a
second, and the fastest is kept.
"""

import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(T, in), (out, in), (out,) or None → (T, out)."""

_MANY = 16  # from so many rows of input on, converting the weights to f32 can pay
_BLOCK_ROWS = 512  # rows of weights converted at a time: 4 MB at a hidden size of 2048
_LARGE = 1 << 20  # weights; a smaller product takes no longer than waking threads
_TRIAL_BYTES = 1 << 26  # more than caches hold, since oneDNN is the fastest only within them
_TRIAL_WIDTH = 2048
_TRIAL_ROWS = 2048  # timed at once; this is so short that other programs seldom interrupt it
_FEW_PARTS = 2  # with a few rows of input, so many times `_TRIAL_ROWS` are timed
_ROUNDS = 3


class Products:
    """The ways that were chosen for one row of input, for a few rows, and for many."""

    __slots__ = ("_few", "_many", "_one")

    def __init__(
        self, one: Product = F.linear, few: Product = F.linear, many: Product = F.linear
    ) -> None:
        self._one, self._few, self._many = one, few, many

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.shape[0]
        if rows == 1:
            return self._one(x, weight, bias)
        return (self._many if rows >= _MANY else self._few)(x, weight, bias)


@torch.inference_mode()
def fastest_products(
    dtype: torch.dtype,
    device: torch.device,
    nbytes: int,
    *generated: Product,
    trial_rows: int = _TRIAL_ROWS,
) -> Products:
    """Try the ways that the device has for this dtype, and keep the fastest ones.

    Args:
        dtype: of weights and inputs.
        device: the device that computes.
        nbytes: of all the weights that one token reads; the trial reads no more than that.
        generated: ways beside torch's, for one row or a few rows of 16 bits on a CPU.
        trial_rows: rows of weights that are timed at once.
    """
    if device.type != "cpu":
        return Products()
    if dtype.itemsize == 4:
        # Not tried: f32 is the reference, and must add up in the same order every time.
        return Products(one=linear_in_parts if torch.get_num_threads() > 1 else F.linear)
    rows = max(1, min(nbytes, _TRIAL_BYTES) // (_TRIAL_WIDTH * dtype.itemsize))
    weight = torch.ones((rows, _TRIAL_WIDTH), dtype=dtype)
    return Products(
        one=_fastest(
            (F.linear, *generated), weight.new_ones((1, _TRIAL_WIDTH)), weight, trial_rows
        ),
        few=_fastest(
            (F.linear, *generated),
            weight.new_ones((_MANY // 2, _TRIAL_WIDTH)),
            weight[: _FEW_PARTS * trial_rows],
            trial_rows,
        ),
        many=_fastest(
            (F.linear, linear_widened),
            weight.new_ones((2 * _MANY, _TRIAL_WIDTH)),
            weight[: 2 * _BLOCK_ROWS],  # many rows wait for arithmetic, not for memory
            trial_rows,
        ),
    )


def linear_in_parts(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, large: int = _LARGE
) -> Tensor:
    """One row in f32: a matrix product for each thread, since torch computes one product on one core."""
    parts = torch.get_num_threads()
    rows, width = weight.shape
    if rows % parts or weight.numel() < large:
        return F.linear(x, weight, bias)
    columns = weight.view(parts, rows // parts, width).transpose(1, 2)
    y = torch.bmm(x.expand(parts, 1, width), columns).view(1, rows)
    return y if bias is None else y.add_(bias)


def linear_widened(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product in f32. Weights are converted block by block, so that no second copy exists."""
    y = x.new_empty((x.shape[0], weight.shape[0]))
    wide = x.float()
    for start in range(0, weight.shape[0], _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        offsets = None if bias is None else bias[rows].float()
        y[:, rows] = F.linear(wide, weight[rows].float(), offsets)
    return y


def _fastest(ways: Sequence[Product], x: Tensor, weight: Tensor, trial_rows: int) -> Product:
    """The way that takes the least time; of equal ones, the first.

    In each round every way multiplies with all parts of the matrix, so that no way finds its part
    in a cache. For each part, the shortest time counts. Torch's threads spin for a while after a
    product and would slow down the next way, so each way multiplies once before it is timed.
    """
    parts = weight.split(trial_rows)
    runs: list[list[list[float]]] = [[] for _ in ways]
    for _ in range(_ROUNDS):
        for way, times in zip(ways, runs, strict=True):
            if torch.get_num_threads() > 1:
                way(x, weight, None)
            times.append([_seconds(way, x, part) for part in parts])
    best = [sum(map(min, zip(*times, strict=True))) for times in runs]
    return ways[best.index(min(best))]


def _seconds(way: Product, x: Tensor, weight: Tensor) -> float:
    start = time.perf_counter()
    way(x, weight, None)
    return time.perf_counter() - start
