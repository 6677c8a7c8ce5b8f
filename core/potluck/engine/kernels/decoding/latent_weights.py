"""The weights of a layer that only latent attention has, for `Decoder`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from potluck.engine.kernels.attending.index_kernel import IndexHeads
from potluck.engine.kernels.attending.latent_kernel import LatentHeads
from potluck.engine.kernels.decoding.latent_layer import LatentShape
from potluck.engine.kernels.layout import ROWS
from potluck.engine.kernels.products.tensors import FloatWeight, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentWeights:
    """What only latent attention has."""

    heads: LatentHeads
    query_norm: Tensor | None = None  # (query rank,)
    queries: Weight | None = None
    norm: Tensor  # (rank,)
    key_up: Weight  # (H·rank, plain_dim)
    value_up: Weight  # (H·value_dim, rank)
    index: "IndexWeights | None" = None  # of the indexer, if there is one
    follows: int | None = None  # see `LatentShape`

    @property
    def shape(self) -> LatentShape:
        queries = self.queries
        return LatentShape(
            heads=self.heads,
            query_rank=None if queries is None else queries.width,
            query_format=None if queries is None else queries.format,
            key_format=self.key_up.format,
            value_format=self.value_up.format,
            index=None if self.index is None else self.index.heads,
            follows=self.follows,
            index_queries_format=None if self.index is None else self.index.queries.format,
            index_keys_format=None if self.index is None else self.index.keys.format,
        )

    @property
    def tensors(self) -> dict[str, Tensor | None]:
        """By the names of the fields in a layer's record."""
        return {
            "query_norm": self.query_norm,
            "key_norm": self.norm,
            "queries": None if self.queries is None else self.queries.data,
            "key_up": self.key_up.data,
            "value_up": self.value_up.data,
            **({} if self.index is None else self.index.tensors),
        }

    def check(self) -> None:
        """Check the tensors, since the kernel checks nothing."""
        heads, queries = self.heads, self.queries
        count = heads.heads
        for matrix, rows, width in (
            (self.key_up, count * heads.rank, heads.plain_dim),
            (self.value_up, count * heads.value_dim, heads.rank),
            *(() if queries is None else ((queries, count * heads.query_dim, queries.width),)),
        ):
            assert (matrix.rows, matrix.width) == (rows, width)
        for matrix in (self.key_up, self.value_up):  # heads begin with a block
            assert matrix.rows // count % ROWS == 0 or isinstance(matrix, FloatWeight)
        assert (self.query_norm is None) == (queries is None)
        norms = [(self.norm, heads.rank)]
        if self.query_norm is not None and queries is not None:
            norms.append((self.query_norm, queries.width))
        for norm, numbers in norms:
            assert norm.dtype == torch.float32
            assert norm.numel() == numbers
        if self.index is not None:
            assert queries is not None
            self.index.check(queries.width)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexWeights:
    """What only an indexer has."""

    heads: IndexHeads
    queries: Weight  # (H·K, query rank)
    keys: Weight  # (K, D)
    head_weights: Tensor  # (H, D)
    norm: Tensor  # (K,)
    norm_bias: Tensor

    @property
    def tensors(self) -> dict[str, Tensor | None]:
        """By the names of the fields in a layer's record."""
        return {
            "index_queries": self.queries.data,
            "index_keys": self.keys.data,
            "head_weights": self.head_weights,
            "index_norm": self.norm,
            "index_norm_bias": self.norm_bias,
        }

    def check(self, query_rank: int) -> None:
        """Check the tensors, since the kernel checks nothing."""
        heads, width = self.heads, self.keys.width
        assert (self.queries.rows, self.queries.width) == (heads.q_size, query_rank)
        assert self.keys.rows == heads.head_dim
        assert self.head_weights.shape == (heads.heads, width)
        assert self.norm.shape == self.norm_bias.shape == (heads.head_dim,)
        for tensor in (self.head_weights, self.norm, self.norm_bias):
            assert tensor.dtype == torch.float32
            assert tensor.is_contiguous()
