"""x Wᵀ + b on the device at hand, by whichever way is the fastest there.

On a CPU there are several, and which one wins depends on the processor. Measured on one core of an
AVX-512 machine, one row times a matrix of 16 bits, gigabytes of weights a second: 9 to 16 through
oneDNN, 23 to 24 through torch's own loop, 35 through a generated kernel; 8 rows times 8 MB of f16 take
torch 2.8 ms and the kernel 0.5, of bf16 both 0.5. On one without 16-bit arithmetic (AVX2) a chunk of 128
rows takes 404 ms as it is and 127 ms with the weights widened to f32 block by block. So they are tried
when weights are made, in a tenth of a second or two, and the best is kept.
"""

import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(T, in), (out, in), (out,) or None → (T, out)."""

_MANY = 16  # rows, from which widening can pay
_BLOCK_ROWS = 512  # of weights widened at a time: 4 MB at a hidden size of 2048
_WORTH_PARTS = 1 << 20  # weights; a smaller product takes no longer than waking threads
_TRIAL_BYTES = 1 << 26  # more than caches hold: within them oneDNN wins, beyond them it loses
_TRIAL_WIDTH = 2048
_TRIAL_ROWS = 2048  # timed at once: so short that little of what else runs here comes between
_FEW_PARTS = 2  # of so many rows, for a few rows of input
_ROUNDS = 3


class Products:
    """The ways that were chosen for one row, for a few and for many."""

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
    dtype: torch.dtype, device: torch.device, nbytes: int, *generated: Product
) -> Products:
    """Try what there is for these numbers on this device.

    Args:
        dtype: of weights and inputs.
        device: where.
        nbytes: of all the weights that one token reads; a model that fits a cache is tried in it.
        generated: ways for one row or a few of 16 bits on a CPU, beside torch's.
    """
    if device.type != "cpu":
        return Products()
    if dtype.itemsize == 4:
        # Not a matter of time: f32 is what is compared, and has to add up the same way every time.
        return Products(one=linear_in_parts if torch.get_num_threads() > 1 else F.linear)
    rows = max(1, min(nbytes, _TRIAL_BYTES) // (_TRIAL_WIDTH * dtype.itemsize))
    weight = torch.ones((rows, _TRIAL_WIDTH), dtype=dtype)
    return Products(
        one=_fastest(
            (F.linear, linear_by_loop, *generated), weight.new_ones((1, _TRIAL_WIDTH)), weight
        ),
        few=_fastest(
            (F.linear, *generated),
            weight.new_ones((_MANY // 2, _TRIAL_WIDTH)),
            weight[: _FEW_PARTS * _TRIAL_ROWS],
        ),
        many=_fastest(
            (F.linear, linear_widened),
            weight.new_ones((2 * _MANY, _TRIAL_WIDTH)),
            weight[: 2 * _BLOCK_ROWS],  # arithmetic, not memory, is what many rows wait for
        ),
    )


def linear_by_loop(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Without oneDNN, which repacks the weights for every product."""
    # The switch is the process's; one thread computes, and only its own next operator reads it.
    torch.backends.mkldnn.enabled = False
    try:
        return F.linear(x, weight, bias)
    finally:
        torch.backends.mkldnn.enabled = True


def linear_in_parts(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """One row in f32: a matrix product for each thread, since one alone uses one core of all."""
    parts = torch.get_num_threads()
    rows, width = weight.shape
    if rows % parts or weight.numel() < _WORTH_PARTS:
        return F.linear(x, weight, bias)
    columns = weight.view(parts, rows // parts, width).transpose(1, 2)
    y = torch.bmm(x.expand(parts, 1, width), columns).view(1, rows)
    return y if bias is None else y.add_(bias)


def linear_widened(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """In f32, a block of weights at a time: never a second copy of the matrix."""
    y = x.new_empty((x.shape[0], weight.shape[0]))
    wide = x.float()
    for start in range(0, weight.shape[0], _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        offsets = None if bias is None else bias[rows].float()
        y[:, rows] = F.linear(wide, weight[rows].float(), offsets)
    return y


def _fastest(ways: Sequence[Product], x: Tensor, weight: Tensor) -> Product:
    """The one with the shortest of a few runs, taken in turns; the first of equals.

    A run is all the parts of the matrix, so that none finds the part it comes to in a cache. The shortest
    of each part count. Where torch has threads, they spin for a while after a product and would hold up
    the next way: it multiplies once more for that, before its time is taken.
    """
    parts = weight.split(_TRIAL_ROWS)
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
