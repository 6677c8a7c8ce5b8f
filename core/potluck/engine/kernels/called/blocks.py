"""What chooses blocks of tokens for each head of keys, called with tensors."""

from ctypes import addressof

import torch
from torch import Tensor

from potluck.engine.kernels.attending.attention_fields import cache_fields, shared_fields
from potluck.engine.kernels.attending.blocks_kernel import (
    BlockHeads,
    ChooseBlocks,
    emit_choose_blocks,
    score_room,
)
from potluck.engine.kernels.called.generated import GeneratedKernels


class BlockChooser:
    """Chooses for one token after the other of a session, and copies what each sees."""

    def __init__(
        self,
        kernels: GeneratedKernels,
        shape: BlockHeads,
        place: tuple[Tensor, int, Tensor | None],
        end: int,
    ) -> None:
        """Prepare it for tokens before the position `end`; of `place` see `ChosenRows`."""
        cache, first, shared = place
        self._kernels, self._shape, self._end = kernels, shape, end
        self._choose = kernels.compiled(emit_choose_blocks, shape)
        of_tokens, of_blocks = score_room(shape, end)
        memory = {
            "token_scores": torch.empty(of_tokens),
            "block_scores": torch.empty(of_blocks, dtype=torch.int32),
            "places": torch.empty(shape.heads * shape.chosen + 1, dtype=torch.int64),
            "rows": cache.new_empty((2, shape.heads, shape.sees, cache.shape[3])),
        }
        self._memory = memory
        self._fields = cache_fields(shape.attention, cache, first)
        self._fields |= shared_fields(shape.attention, shared)
        self._fields |= {name: one.data_ptr() for name, one in memory.items()}

    def __call__(self, queries: Tensor, position: int) -> Tensor:
        """The keys and values that a token at a position sees, as a cache, which the next call overwrites.

        Queries are (H, K), f32. Rows behind those of the last token that it sees are anything.
        """
        shape, kernels = self._shape, self._kernels
        assert shape.sees <= position < self._end
        assert queries.shape == (shape.heads, shape.head_dim)
        assert queries.dtype == torch.float32
        assert queries.is_contiguous()
        arguments = ChooseBlocks.structure(
            queries=queries.data_ptr(),
            position=position,
            job=kernels.job,
            shares=kernels.shares,
            **self._fields,
        )
        kernels.wake()
        self._choose(addressof(arguments))
        return self._memory["rows"]
