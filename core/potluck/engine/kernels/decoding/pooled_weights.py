"""The weights of a layer that only attention to pools has, for `Decoder`."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from potluck.engine.kernels.attending.pooled_kernel import PooledHeads
from potluck.engine.kernels.decoding.pooled_calls import PooledShape
from potluck.engine.kernels.products.tensors import Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledWeights:
    """What only such attention has. Norms and what is added to gates are those of attention's pools, then of the indexer's."""

    heads: PooledHeads
    query_norm: Tensor
    queries: Weight
    key_norm: Tensor
    groups: Sequence[Weight]  # of each group of heads, one after the other in memory
    pooling: Weight | None = None
    pool_norms: Sequence[Tensor] = ()
    pool_biases: Sequence[Tensor] = ()  # (rate, inputs) each
    index_queries: Weight | None = None
    head_weights: Tensor | None = None

    @property
    def shape(self) -> PooledShape:
        first = self.groups[0]
        return PooledShape(
            heads=self.heads,
            query_rank=self.queries.width,
            groups=len(self.groups),
            group_rank=first.rows,
            queries_format=self.queries.format,
            group_format=first.format,
            pooling_format=self.pooling and self.pooling.format,
            index_format=self.index_queries and self.index_queries.format,
        )

    @property
    def tensors(self) -> dict[str, Tensor | None]:
        """By the names of the fields in a layer's record."""
        names = ("pool", "index")
        norms = zip(names, self.pool_norms, strict=False)
        biases = zip(names, self.pool_biases, strict=False)
        return {
            "query_norm": self.query_norm,
            "queries": self.queries.data,
            "key_norm": self.key_norm,
            "group_output": self.groups[0].data,
            "pooling": self.pooling and self.pooling.data,
            "index_queries": self.index_queries and self.index_queries.data,
            "head_weights": self.head_weights,
            **{f"{name}_norm": one for name, one in norms},
            **{f"{name}_bias": one for name, one in biases},
        }

    def check(self, hidden: int) -> None:
        """Check the tensors, since the kernel checks nothing."""
        heads, index = self.heads, self.heads.index
        size = heads.attention.head_dim
        all_heads, rank = heads.attention.heads * size, self.queries.width
        matrices = [(self.queries, all_heads, rank)]
        if self.pooling is not None:
            matrices.append((self.pooling, heads.pooling, hidden))
        assert (self.pooling is None) == (not heads.makers)
        assert (self.index_queries is None) == (self.head_weights is None) == (index is None)
        vectors: list[tuple[Tensor, tuple[int, ...]]] = [
            (self.query_norm, (rank,)),
            (self.key_norm, (size,)),
        ]
        if index is not None and self.index_queries is not None and self.head_weights is not None:
            matrices.append((self.index_queries, index.q_size, rank))
            vectors.append((self.head_weights, (index.heads, hidden)))
        first, width = self.groups[0], all_heads // len(self.groups)
        matrices += [(one, first.rows, width) for one in self.groups]
        for matrix, rows, columns in matrices:
            assert (matrix.rows, matrix.width) == (rows, columns)
        for one, other in pairwise(self.groups):
            assert one.data.data_ptr() + one.data.nbytes == other.data.data_ptr()
            assert one.format == other.format
        makers = zip(heads.makers, self.pool_norms, self.pool_biases, strict=True)
        for maker, norm, bias in makers:
            vectors += [(norm, (maker.size,)), (bias, (heads.rate, maker.inputs))]
        for vector, shape in vectors:
            assert vector.dtype == torch.float32
            assert vector.is_contiguous()
            assert vector.shape == shape
