"""Flash attention for a causal chunk that follows cached tokens; masked attention for windows.

`causal_lower_right` aligns the last query with the last key, as a chunk after cached tokens needs it, and
lets torch use flash attention. `is_causal` would align the first query with the first key. With a mask,
torch uses a kernel that holds all scores of heads that share keys; so where a window needs a mask, keys
are expanded. Only GPUs of CUDA and ROCm have flash attention. On a CPU torch makes a mask of
`causal_lower_right`, which is how this class is tested; on a GPU it has not run.

Imported only for a GPU: `torch.nn.attention.bias` brings torch's compiler along, which takes a second.
"""

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.attention.bias import CausalBias, causal_lower_right

from potluck.engine.attention import Attention, ExpandedAttention, Span, Step
from potluck.engine.kvcache import LayerCache


class AlignedAttention(ExpandedAttention):
    """Expanded keys only where there is a mask; flash attention elsewhere."""

    __slots__ = ()

    def _mask(self, step: Step, span: Span) -> Tensor | None:
        if span.is_causal and step.position > 0:
            return causal_lower_right(step.tokens, span.length)  # holds no numbers, takes 7 µs
        return super()._mask(step, span)

    def _attend_many(self, q: Tensor, cache: LayerCache, span: Span, mask: Tensor | None) -> Tensor:
        if mask is None or isinstance(mask, CausalBias):
            return Attention._attend_many(self, q, cache, span, mask)
        return super()._attend_many(q, cache, span, mask)


def has_flash(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch has flash attention here for heads that share keys and fewer queries than keys."""
    queries, keys = (
        torch.empty(shape, dtype=dtype, device=device) for shape in ((1, 4, 8, 64), (1, 2, 24, 64))
    )
    return can_use_flash_attention(SDPAParams(queries, keys, keys, None, 0.0, False, True))
