"""Allocate a stage's matrices and norms as they are computed with, and have them filled."""

from collections.abc import Mapping
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from potluck.engine.accelerator import (
    LayerOps,
    MakeLinear,
    choose_linear,
    choose_ops,
)
from potluck.engine.device import CacheForm, compute_dtype
from potluck.engine.generated.singles import as_generated
from potluck.engine.kernels import Arena, Kernels, PackedWeight, best_kernels
from potluck.engine.layers.linear import (
    Embedding,
    FloatEmbedding,
    FloatLinear,
    JoinedLinear,
    Linear,
    PackedEmbedding,
    PackedLinear,
)
from potluck.engine.layers.norms import BiasedLayerNorm, KernelNorm, LayerNorm, RmsNorm
from potluck.engine.layers.products import Products, choose_products
from potluck.engine.loading.filling import Filling
from potluck.engine.loading.stage_weights import StageWeights
from potluck.engine.loading.targets import PackedTarget, is_whole_blocks
from potluck.engine.pages import Scratch
from potluck.model.config import ModelConfig
from potluck.model.families.facts import NormKind
from potluck.model.formats import INT8, PackedFormat
from potluck.model.names import bias_name
from potluck.model.naming import HEAD_BIAS
from potluck.model.projection import Projection
from potluck.model.schemes import PACKED_SCHEMES, Scheme
from potluck.model.tensor_formats import tensor_format

if TYPE_CHECKING:
    from potluck.engine.kernels.called.generated import GeneratedKernels

_NORMS: Mapping[NormKind, type[RmsNorm]] = {
    "root mean square": RmsNorm,
    "layer": LayerNorm,
    "biased layer": BiasedLayerNorm,
}


class MatrixBuilder:
    """Makes matrices and norms. It hands the targets to fill, and the work to do after that, to `filling`."""

    def __init__(
        self,
        config: ModelConfig,
        scheme: Scheme,
        device: torch.device,
        cache: CacheForm,
        filling: Filling,
        kept: StageWeights | None = None,
    ) -> None:
        self._config, self._device = config, device
        self._scheme: Scheme = scheme
        self.dtype = compute_dtype(scheme, device, exceeds_f16=config.exceeds_f16)
        self._cache = cache
        self._filling = filling
        # Matrices for a GPU are freed from RAM one by one. An arena could free them only together.
        self._arena = Arena() if device.type == "cpu" else None
        # Layers that are computed one after the other share both, also those that were loaded before.
        self._kept_kernels = None if kept is None else kept.kernels
        self.scratch = Scratch() if kept is None else kept.scratch

    @cached_property
    def _products(self) -> Products:
        return choose_products(self.dtype, self._device, self.run_kernels)

    @cached_property
    def _kernels(self) -> Kernels:
        return self._kept_kernels or best_kernels(threads=torch.get_num_threads())

    @property
    def run_kernels(self) -> Kernels | None:
        """The kernels for single tokens, on a CPU."""
        return self._kernels if self._device.type == "cpu" else None

    @cached_property
    def generated(self) -> "GeneratedKernels | None":
        """The kernels that compute with hidden states of f32 on this CPU; None: torch computes."""
        return as_generated(self.run_kernels) if self.dtype == torch.float32 else None

    @cached_property
    def _make_placed(self) -> MakeLinear:
        return choose_linear(self._device, self.dtype)

    @cached_property
    def _ops(self) -> LayerOps:
        return choose_ops(self._device, self.dtype)

    def matrix(self, name: str) -> Tensor | PackedWeight:
        """The embedding's or the head's matrix, with a row for each token of the vocabulary."""
        shape = (self._config.vocab_size, self._config.hidden_size)
        held = tensor_format(self._config, name, shape, self._scheme)
        if not isinstance(held, PackedFormat):
            return self._filling.tensor(name, self._empty(*shape))
        weight = PackedWeight.empty(*shape, held, self._arena)
        self._filling.add(name, PackedTarget(weight, 0, shape[0], self._kernels))
        return weight

    def embedding(self, matrix: Tensor | PackedWeight) -> Embedding:
        if isinstance(matrix, PackedWeight):
            return PackedEmbedding(matrix, self.dtype, self._device)
        return FloatEmbedding(matrix)

    def lm_head(self, matrix: Tensor | PackedWeight) -> Linear:
        bias = None
        if self._config.has_head_bias:
            bias = self._filling.tensor(HEAD_BIAS, self._empty(self._config.vocab_size))
        if isinstance(matrix, PackedWeight):
            return self._packed_linear(matrix, bias)
        product = self._products if self.run_kernels is None else self.run_kernels.multiply_plain
        return FloatLinear(matrix, bias, product)

    def norm(
        self,
        name: str,
        eps: float,
        size: int | None = None,
        *,
        kind: NormKind = "root mean square",
        is_whole: bool = False,
    ) -> RmsNorm:
        """The norm of `size` numbers; None: of hidden states. `is_whole`: the family's 1 + weight is not its."""
        size = size or self._config.hidden_size
        if kind == "biased layer":
            both = torch.empty((2, size), device=self._device)
            self._filling.tensor(name, self._with_offset(both[0]))
            self._filling.tensor(bias_name(name), both[1])
            return self._norm_of(both, eps, kind)
        empty = torch.empty(size, device=self._device) if is_whole else self._norm_weight(size)
        weight = self._filling.tensor(name, empty)
        return self._norm_of(weight, eps, kind)

    def _norm_of(self, weight: Tensor, eps: float, kind: NormKind = "root mean square") -> RmsNorm:
        if self.run_kernels is not None:
            return KernelNorm(weight, eps, self.run_kernels, kind)
        return _NORMS[kind](weight, eps, self._ops.norm)

    def _up(self, rows: int, width: int, *, is_packed: bool) -> FloatLinear | PackedLinear:
        """A matrix of latent attention. Packed ones have 8 bits: they are a few hundredths of a layer."""
        if not is_packed:
            return FloatLinear(self._empty(rows, width), None, self._products)
        weight = PackedWeight.empty(rows, width, INT8, self._arena)
        return PackedLinear(weight, None, self._kernels)

    def _linear(self, prefix: str, projection: Projection) -> Linear:
        """One matrix whose rows are those of the parts, one after the other."""
        is_packed = self._scheme in PACKED_SCHEMES
        if is_packed and not all(map(is_whole_blocks, projection.rows[:-1])):
            return JoinedLinear([self._linear(prefix, part) for part in projection.split()])
        rows, width = projection.rows, projection.width
        bias = self._empty(sum(rows)) if projection.has_bias else None
        if bias is not None:
            for part, target in zip(projection.parts, bias.split(rows), strict=True):
                self._filling.tensor(f"{prefix}{part}.bias", target)
        names = [f"{prefix}{part}.weight" for part in projection.parts]
        if not is_packed:
            weight = self._empty(sum(rows), width)
            for name, target in zip(names, weight.split(rows), strict=True):
                self._filling.tensor(name, target)
            return FloatLinear(weight, bias, self._products)
        held = tensor_format(self._config, names[0], (rows[0], width), self._scheme)
        assert isinstance(held, PackedFormat)
        packed, first = PackedWeight.empty(sum(rows), width, held, self._arena), 0
        for name, some in zip(names, rows, strict=True):
            self._filling.add(name, PackedTarget(packed, first, some, self._kernels))
            first += some
        return self._packed_linear(packed, bias)

    def _packed_linear(self, weight: PackedWeight, bias: Tensor | None) -> Linear:
        if self._device.type == "cpu":
            return PackedLinear(weight, bias, self._kernels)
        linear = self._make_placed(weight, bias)
        self._filling.then(linear.place)  # frees the packed bytes in RAM, layer by layer
        return linear

    def _vector(self, prefix: str, name: str | None, size: int) -> Tensor | None:
        """Memory for so many numbers of this name, f32, to be filled; None: there are none."""
        return None if name is None else self._filled(prefix + name, size)

    def _filled(self, name: str, *shape: int) -> Tensor:
        """Memory for a small tensor of this name, f32, to be filled."""
        return self._filling.tensor(name, torch.empty(shape, device=self._device))

    def _norm_weight(self, *shape: int) -> Tensor:
        """Memory for a norm's weight, f32. The 1 of a family's 1 + weight is added later."""
        return self._with_offset(torch.empty(shape, device=self._device))

    def _with_offset(self, weight: Tensor) -> Tensor:
        if self._config.unit_offset:
            self._filling.then(lambda: weight.add_(1))
        return weight

    def _empty(self, *shape: int) -> Tensor:
        if self._arena is None:
            return torch.empty(shape, dtype=self.dtype, device=self._device)
        memory = self._arena.allocate(prod(shape) * self.dtype.itemsize)
        return memory.view(self.dtype).view(shape)
