"""Decoding: one token through a stage's layers in a single call, with all memory made beforehand."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from potluck.engine.kernels.attention_kernel import LANES, Heads
from potluck.engine.kernels.generated import KINDS, GeneratedKernels
from potluck.engine.kernels.layer_kernel import LAYER_FIELDS, STEP_FIELDS, LayerShape
from potluck.engine.kernels.layout import input_bytes
from potluck.engine.kernels.tensors import PackedWeight

_NO_WINDOW = 1 << 40  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """A decoder layer: packed matrices, and norms and biases in f32."""

    input_norm: Tensor  # (D,)
    qkv: PackedWeight
    qkv_bias: Tensor | None
    qk_norm: Tensor | None  # (2, K): of queries, of keys
    output: PackedWeight
    post_norm: Tensor  # (D,)
    gate_up: PackedWeight  # gates before ups
    down: PackedWeight
    window: int | None  # cached tokens that a query looks at, itself among them


def layer_shape(weights: LayerWeights, heads: Heads, epsilon: float) -> LayerShape:
    """The shape of a layer, which all layers of a `Decoder` must have."""
    return LayerShape(
        hidden=weights.qkv.width,
        intermediate=weights.down.width,
        attention=heads,
        epsilon=epsilon,
        qkv_bits=weights.qkv.bits,
        output_bits=weights.output.bits,
        gate_up_bits=weights.gate_up.bits,
        down_bits=weights.down.bits,
    )


class Decoder:
    """Some layers of one shape, and the memory that a token needs on its way through them.

    One token at a time. It keeps the weights alive, and uses the caches that each call gives.
    """

    def __init__(
        self,
        kernels: GeneratedKernels,
        layers: Sequence[LayerWeights],
        heads: Heads,
        epsilon: float,
    ) -> None:
        shape = layer_shape(layers[0], heads, epsilon)
        for layer in layers:
            assert layer_shape(layer, heads, epsilon) == shape, "layers of one shape"
            _check(layer, shape)
        self._kernels, self._layers, self._shape = kernels, tuple(layers), shape
        self._decode = kernels.decode_kernel(shape)
        widest = max(shape.hidden, shape.attended, shape.intermediate)
        self._records = torch.empty(input_bytes(1, widest), dtype=torch.uint8)
        self._wide = torch.empty(max(shape.qkv_rows, 2 * shape.intermediate))
        self._attended = torch.empty(shape.attended)
        self._scores = torch.empty((shape.attention.heads, 0))
        self._step = _Record(STEP_FIELDS, 1)
        self._own = _Record(LAYER_FIELDS, len(layers))
        self._describe()

    def __call__(
        self,
        hidden: Tensor,
        caches: Sequence[Tensor],
        position: int,
        cosines: Tensor,
        sines: Tensor,
    ) -> None:
        """Run one token through the layers.

        Args:
            hidden: (1, D), f32; becomes the hidden states after the last layer.
            caches: of each layer, (2, Hkv, capacity, K); the token's keys and values are written.
            position: of the token; so many tokens are cached.
            cosines: of the position's angles, f32, one for each pair.
            sines: likewise.
        """
        assert hidden.dtype == torch.float32
        assert hidden.is_contiguous()
        assert hidden.numel() == self._shape.hidden
        for angles in (cosines, sines):
            assert angles.dtype == torch.float32
            assert angles.is_contiguous()
            assert angles.numel() == self._shape.attention.rotary_dim // 2
        self._place(caches, position)
        step = self._step.rows[0]
        step[0], step[1] = hidden.data_ptr(), position
        step[2], step[3] = cosines.data_ptr(), sines.data_ptr()
        self._kernels.wake()
        self._decode(self._step.address, self._own.address, len(self._layers))

    def _describe(self) -> None:
        """Write what stays the same from token to token."""
        step = {
            "records": self._records.data_ptr(),
            "wide": self._wide.data_ptr(),
            "attended": self._attended.data_ptr(),
            "job": self._kernels.job,
            "shares": self._kernels.shares,
        }
        self._step.write(0, step)
        for index, layer in enumerate(self._layers):
            norms = layer.qk_norm
            own = {
                "input_norm": layer.input_norm.data_ptr(),
                "qkv": layer.qkv.data.data_ptr(),
                "qkv_bias": 0 if layer.qkv_bias is None else layer.qkv_bias.data_ptr(),
                "query_norm": 0 if norms is None else norms[0].data_ptr(),
                "key_norm": 0 if norms is None else norms[1].data_ptr(),
                "output": layer.output.data.data_ptr(),
                "post_norm": layer.post_norm.data_ptr(),
                "gate_up": layer.gate_up.data.data_ptr(),
                "down": layer.down.data.data_ptr(),
                "window": _NO_WINDOW if layer.window is None else layer.window,
            }
            self._own.write(index, own)

    def _place(self, caches: Sequence[Tensor], position: int) -> None:
        """Write where the caches are; they move when a session grows, or is another."""
        keys = LAYER_FIELDS.index("keys")
        assert len(caches) == len(self._layers)
        for cache, row in zip(caches, self._own.rows, strict=True):
            assert position < cache.shape[2], "no room in the cache"
            if row[keys] != cache.data_ptr():
                heads = self._shape.attention
                assert KINDS[cache.dtype] == heads.cache_kind
                assert cache.is_contiguous()
                assert (cache.shape[1], cache.shape[3]) == (heads.kv_heads, heads.head_dim)
                row[keys] = cache.data_ptr()
                row[keys + 1] = cache.data_ptr() + cache.nbytes // 2
                row[keys + 2] = cache.shape[2] * cache.shape[3]
        if position >= self._scores.shape[1]:
            tokens = -(-(2 * position + 1) // LANES) * LANES
            self._scores = torch.empty((self._shape.attention.heads, tokens))
            place = {"scores": self._scores.data_ptr(), "scores_stride": tokens}
            self._step.write(0, place)


class _Record:
    """Rows of fields of 8 bytes, as a kernel reads them."""

    def __init__(self, fields: Sequence[str], count: int) -> None:
        self._fields = tuple(fields)
        self.rows = ((ctypes.c_int64 * len(fields)) * count)()
        self.address = ctypes.addressof(self.rows)

    def write(self, row: int, values: dict[str, int]) -> None:
        for name, value in values.items():
            self.rows[row][self._fields.index(name)] = value


def _check(layer: LayerWeights, shape: LayerShape) -> None:
    """What the kernel takes for granted."""
    matrices = (layer.qkv, layer.output, layer.gate_up, layer.down)
    assert [(matrix.rows, matrix.width) for matrix in matrices] == [
        (shape.qkv_rows, shape.hidden),
        (shape.hidden, shape.attended),
        (2 * shape.intermediate, shape.hidden),
        (shape.hidden, shape.intermediate),
    ]
    vectors = {layer.input_norm: shape.hidden, layer.post_norm: shape.hidden}
    if layer.qkv_bias is not None:
        vectors[layer.qkv_bias] = shape.qkv_rows
    if layer.qk_norm is not None:
        vectors[layer.qk_norm] = 2 * shape.attention.head_dim
    for vector, numbers in vectors.items():
        assert vector.dtype == torch.float32
        assert vector.is_contiguous()
        assert vector.numel() == numbers
