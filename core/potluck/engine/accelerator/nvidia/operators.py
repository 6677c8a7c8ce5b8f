"""The functions of `kernels.cu` on tensors."""

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from potluck.engine.accelerator.nvidia.program import GpuProgram, Long
from potluck.engine.device import compute_capability
from potluck.engine.kernels.layout import GROUP, ROWS, blocks_of, groups_of
from potluck.model.formats import INT4, INT4_OFFSET, INT4_SUPER, INT8, MXFP4, PackedFormat

logger = logging.getLogger(__name__)

FORMATS = (INT8, INT4, INT4_OFFSET, INT4_SUPER, MXFP4)  # in the order of the enum in `kernels.cu`
DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # in the order of NUMBER

_LEAST_CAPABILITY = (6, 1)  # products of four bytes in one instruction
_TILES = (1, 2, 4, 8)  # tokens that share each weight that was read
_WARP = 32
_THREADS = 256
_MOST_WARPS = 16  # that share a row of blocks
_SUM_BYTES = 4
_CHUNK = 64  # CHUNK in `kernels.cu`
_MOST_THREADS = 1024  # of a block
_SHARED = 48 << 10  # bytes of shared memory that every block may have
MOST_ATTENDED = (_SHARED // _SUM_BYTES - 2 * _MOST_THREADS) * _CHUNK
"""Cached tokens: `combine` has a number for each chunk of them in shared memory."""


class NvidiaOperators:
    """The functions for one device, and activations of one dtype. All tensors must be contiguous and on the device."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        """Prepare to compile them.

        Raises:
            RuntimeError: this GPU, torch or system cannot.
        """
        capability = compute_capability(device)
        if torch.version.hip or capability is None or capability < _LEAST_CAPABILITY:
            raise RuntimeError("this GPU has no products of bytes that these kernels know")
        source = (Path(__file__).parent / "kernels.cu").read_text(encoding="utf-8")
        self._program = GpuProgram(source, device, [f"-DNUMBER={DTYPES.index(dtype)}"])
        self.device, self.dtype = device, dtype

    def is_right(
        self, what: str, compute: Callable[[], Tensor], expected: Tensor, tolerance: float
    ) -> bool:
        """Whether a function gives these numbers on this GPU; what it gives instead is logged."""
        try:
            error = (compute().float() - expected).norm() / expected.norm()
        except RuntimeError as fault:
            logger.warning("%s failed device=%s reason=%s", what, self.device, fault)
            return False
        if not error.item() < tolerance:  # NaN too
            logger.warning("%s is wrong device=%s error=%.3g", what, self.device, error.item())
            return False
        return True

    def multiply(
        self, weight: Tensor, held: PackedFormat, rows: int, x: Tensor, bias: Tensor | None
    ) -> Tensor:
        """(T, width) → (T, rows), with the packed bytes of a matrix (rows, width). T is small: for each 8 they are read once."""
        tokens, width = x.shape
        groups, (integers, factors) = groups_of(width), self._quantise(x)
        y = torch.empty(tokens, rows, dtype=self.dtype, device=self.device)
        tile = next((tile for tile in _TILES if tile >= tokens), _TILES[-1])
        warps = _warps(held, groups)
        self._program.start(
            f"product<{FORMATS.index(held)}, {tile}>", (blocks_of(rows), -(-tokens // tile), 1), warps * _WARP,
            weight, integers, factors, bias, y, rows, groups, tokens,
            shared=warps * tile * ROWS * _SUM_BYTES,
        )  # fmt: skip
        return y

    def multiply_chosen(
        self,
        matrices: Tensor,
        biases: Tensor | None,
        held: PackedFormat,
        rows: int,
        x: Tensor,
        chosen: Tensor,
    ) -> Tensor:
        """(T, width) → (n, rows): each token with as many of several matrices of one shape, one after the other.

        Args:
            matrices: where their packed bytes are, i64.
            biases: where their biases are, i64; None: they have none.
            held: the format of all.
            rows: of each.
            x: the tokens.
            chosen: numbers of matrices, (n,), i64; n is a multiple of T.
        """
        tokens, width = x.shape
        groups, (integers, factors) = groups_of(width), self._quantise(x)
        count = len(chosen)
        y = torch.empty(count, rows, dtype=self.dtype, device=self.device)
        warps = _warps(held, groups)
        self._program.start(
            f"product_of_chosen<{FORMATS.index(held)}>", (blocks_of(rows), count, 1), warps * _WARP,
            matrices, biases, chosen, integers, factors, y, rows, groups, count // tokens,
            shared=warps * ROWS * _SUM_BYTES,
        )  # fmt: skip
        return y

    def _check(self, *activations: Tensor) -> None:
        """A kernel would read other numbers as if they were its own."""
        for each in activations:
            assert each.dtype == self.dtype, (each.dtype, self.dtype)

    def _quantise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(T, width) → integers, i8, and for each group of 32 its scale, and scale times the sum of its integers."""
        self._check(x)
        tokens, width = x.shape
        groups = groups_of(width)
        integers = torch.empty(tokens, groups * GROUP, dtype=torch.int8, device=self.device)
        factors = torch.empty(tokens, groups, 2, device=self.device)
        each = _THREADS // _WARP
        self._program.start(
            "quantise", (-(-tokens * groups // each), 1, 1), _THREADS,
            x, integers, factors, tokens, width, groups,
        )  # fmt: skip
        return integers, factors

    def dequantise(
        self, weight: Tensor, held: PackedFormat, width: int, first: int, last: int
    ) -> Tensor:
        """The numbers of the rows from `first` to `last` of a packed matrix, (n, padded width). `first` begins a block."""
        groups = groups_of(width)
        blocks = blocks_of(last) - first // ROWS
        y = torch.empty(blocks * ROWS, groups * GROUP, dtype=self.dtype, device=self.device)
        each = _THREADS // _WARP
        start = held.nbytes(first, width)
        self._program.start(
            f"dequantise<{FORMATS.index(held)}>", (-(-groups // each), blocks, 1), _THREADS,
            weight[start:], y, groups,
        )  # fmt: skip
        return y[: last - first]

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        """(…, n) → (…, n): root mean square norms of the last axis, with f32 weights (n,)."""
        self._check(x)
        width = x.shape[-1]
        y = torch.empty_like(x)
        threads = max(_WARP, min(1024, -(-width // 4 // _WARP) * _WARP))
        rows = x.numel() // width
        self._program.start("rms_norm", (rows, 1, 1), threads, x, weight, y, width, float(eps))
        return y

    def rotate(self, x: Tensor, cosines: Tensor, sines: Tensor) -> None:
        """Rotate (T, H, dim) in place, as `engine/layers/rotary.py:rotate` does; its last axis is contiguous."""
        self._check(x, cosines, sines)
        tokens, heads, size = x.shape
        of_token, of_head, _ = x.stride()
        threads = max(_WARP, min(1024, -(-heads * size // 2 // _WARP) * _WARP))
        self._program.start(
            "rotate", (tokens, 1, 1), threads,
            x, cosines, sines, heads, size // 2, Long(of_token), Long(of_head),
        )  # fmt: skip

    def norm_heads(self, x: Tensor, weight: Tensor, eps: float) -> None:
        """Norm each head of (T, H, K) in place, with f32 weights (H, K); its last axis is contiguous."""
        self._check(x)
        tokens, heads, size = x.shape
        of_token, of_head, _ = x.stride()
        each = _THREADS // _WARP
        self._program.start(
            "norm_heads", (-(-tokens * heads // each), 1, 1), _THREADS,
            x, weight, tokens, heads, size, float(eps), Long(of_token), Long(of_head),
        )  # fmt: skip

    def gate(self, x: Tensor, *, is_gelu: bool) -> Tensor:
        """Gates before ups, (T, 2 n) → silu(gate) · up, (T, n), or with gelu in its tanh form."""
        self._check(x)
        tokens, width = x.shape[0], x.shape[1] // 2
        y = torch.empty(tokens, width, dtype=self.dtype, device=self.device)
        count = tokens * width
        self._program.start(
            "gate", (-(-count // _THREADS), 1, 1), _THREADS,
            x, y, Long(count), width, int(is_gelu),
        )  # fmt: skip
        return y

    @staticmethod
    def can_attend(size: int, group: int) -> bool:
        """Whether heads of this size, of which so many share keys, have a kernel: it holds their queries and sums."""
        values = _THREADS // (size // 2)  # at a time
        held = group * (size + _CHUNK + values * size) * _SUM_BYTES
        return size % 16 == 0 and values > 0 and held <= _SHARED

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
    ) -> Tensor:
        """Attention of one token's queries (Hkv, G, K) over keys and values (Hkv, length, K), each head's contiguous: (Hkv·G·K,).

        The mask, (length,), is added to scores; at least one number of it is finite.
        """
        self._check(q, keys, values, *([] if mask is None else [mask]))
        heads, group, size = q.shape
        length, chunks = keys.shape[1], -(-keys.shape[1] // _CHUNK)
        parts = torch.empty(chunks, heads, group, size, device=self.device)
        ends = torch.empty(chunks, heads, group, 2, device=self.device)
        y = torch.empty(heads * group * size, dtype=self.dtype, device=self.device)
        self._program.start(
            f"attend<{size}, {group}>", (heads, chunks, 1), _THREADS,
            q, keys, values, Long(keys.stride(0)), mask, float(scale), parts, ends, length,
        )  # fmt: skip
        threads = max(_THREADS, -(-size // _WARP) * _WARP)
        self._program.start(
            "combine", (heads * group, 1, 1), threads,
            parts, ends, y, chunks, size,
            shared=(chunks + threads) * _SUM_BYTES,
        )  # fmt: skip
        return y


def _warps(held: PackedFormat, groups: int) -> int:
    """How many warps share a row of blocks."""
    at_once = 1 if held == INT8 else 2  # blocks that a warp reads
    return max(1, min(_MOST_WARPS, groups // (2 * at_once)))


@cache
def find_operators(device: torch.device, dtype: torch.dtype) -> NvidiaOperators | None:
    """Our kernels for this device; None: there are none, as on every other kind of device."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    try:
        return NvidiaOperators(device, dtype)
    except RuntimeError as reason:
        logger.info("no kernels of our own device=%s reason=%s", device, reason)
        return None
