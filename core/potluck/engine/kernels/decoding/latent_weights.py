"""The weights of a layer that only latent attention has, for `Decoder`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from potluck.engine.kernels.attending.index_kernel import IndexHeads
from potluck.engine.kernels.attending.latent_kernel import LatentHeads
from potluck.engine.kernels.attending.pool_rows_kernel import PoolHeads
from potluck.engine.kernels.decoding.latent_layer import LatentShape
from potluck.engine.kernels.decoding.pool_index_calls import PoolIndexShape
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
    index: "IndexWeights | PoolIndexWeights | None" = None  # of the indexer, if there is one
    follows: int | None = None  # see `LatentShape`

    @property
    def shape(self) -> LatentShape:
        queries, index = self.queries, self.index
        of_tokens = index if isinstance(index, IndexWeights) else None
        return LatentShape(
            heads=self.heads,
            query_rank=None if queries is None else queries.width,
            query_format=None if queries is None else queries.format,
            key_format=self.key_up.format,
            value_format=self.value_up.format,
            index=of_tokens and of_tokens.heads,
            pools=index.shape if isinstance(index, PoolIndexWeights) else None,
            follows=self.follows,
            index_queries_format=of_tokens and of_tokens.queries.format,
            index_keys_format=of_tokens and of_tokens.keys.format,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolIndexWeights:
    """What only an indexer of pools has."""

    heads: PoolHeads
    queries: Weight  # (H·K, query rank)
    keys: Weight  # (K, D)
    gates: Weight  # (K, D)
    head_weights: Tensor  # (H, D)
    norm: Tensor  # (2, K): weight and bias
    gate_bias: Tensor  # (pool, K)

    @property
    def shape(self) -> PoolIndexShape:
        return PoolIndexShape(
            heads=self.heads,
            queries_format=self.queries.format,
            keys_format=self.keys.format,
            gates_format=self.gates.format,
        )

    @property
    def tensors(self) -> dict[str, Tensor]:
        """By the names of the fields in a layer's record."""
        return {
            "index_queries": self.queries.data,
            "index_keys": self.keys.data,
            "index_gates": self.gates.data,
            "head_weights": self.head_weights,
            "index_norm": self.norm,
            "index_gate_bias": self.gate_bias,
        }

    def check(self, query_rank: int) -> None:
        """Check the tensors, since the kernel checks nothing."""
        scores, width = self.heads.scores, self.keys.width
        size = scores.head_dim
        assert (self.queries.rows, self.queries.width) == (scores.q_size, query_rank)
        for matrix in (self.keys, self.gates):
            assert (matrix.rows, matrix.width) == (size, width)
        assert self.head_weights.shape == (scores.heads, width)
        assert self.norm.shape == (2, size)
        assert self.gate_bias.shape == (self.heads.pool, size)
        for tensor in (self.head_weights, self.norm, self.gate_bias):
            assert tensor.dtype == torch.float32
            assert tensor.is_contiguous()
