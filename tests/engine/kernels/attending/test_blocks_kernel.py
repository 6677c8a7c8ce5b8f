"""For each head of keys a query sees the blocks with the highest scores, as torch finds them, and the last one."""

import pytest
import torch
from torch_layers import make_heads

from potluck.engine.caches.kvcache import IndexedCache
from potluck.engine.kernels.attending.blocks_kernel import BlockHeads
from potluck.engine.kernels.called.blocks import BlockChooser
from potluck.engine.kernels.called.generated import GeneratedKernels, host_paths
from potluck.engine.layers.choosing import choose
from potluck.model.cache_rows import KeysAndValues

KERNELS = GeneratedKernels(host_paths()[0])
HEADS, SIZE, INDEX, BLOCK, CHOSEN, TOKENS = 2, 16, 12, 5, 3, 300
SHARED = 256


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8])
@pytest.mark.parametrize("shared", [0, SHARED])
def test_the_rows_of_the_highest_blocks_are_copied(dtype: torch.dtype, shared: int) -> None:
    row = KeysAndValues(heads=HEADS, size=SIZE, number_bytes=dtype.itemsize, index=INDEX)
    cache = IndexedCache(row, dtype, torch.device("cpu"))
    cache.resize(TOKENS, 0)
    cache.write(0, torch.randn(TOKENS, 2 * HEADS, SIZE))
    cache.write_index(0, 0, torch.randn(TOKENS, INDEX))
    keys = cache.read_index(0, 0, TOKENS)
    if shared:
        cache.share(shared, TOKENS)
    heads = make_heads(2 * HEADS, HEADS, SIZE, SIZE, dtype)
    shape = BlockHeads(
        attention=heads,
        head_dim=INDEX,
        rotary_dim=8,
        block=BLOCK,
        chosen=CHOSEN,
        last=1,
        epsilon=0.1,
    )
    place = cache.both, cache.first, cache.shared
    chooser = BlockChooser(KERNELS, shape, place, TOKENS)

    for position in (shape.sees, shape.sees + 4, 100, TOKENS - 1):
        queries = torch.randn(HEADS, INDEX)
        rows = chooser(queries, position)

        blocks = position // BLOCK + 1
        scores = torch.full((HEADS, blocks * BLOCK), -torch.inf)
        scores[:, : position + 1] = queries @ keys[: position + 1].T
        scores = scores.view(HEADS, blocks, BLOCK).amax(-1)
        scores[:, -1] = torch.inf
        seen = choose(scores, CHOSEN).repeat_interleave(BLOCK, 1)[:, : position + 1]
        tokens = seen.nonzero()[:, 1].view(HEADS, -1)
        wanted = cache.gather_heads(tokens)
        assert torch.equal(rows[:, :, : tokens.shape[1]], wanted)
