"""Flash attention for a causal chunk that follows cached tokens; masked attention for windows.

`causal_lower_right` aligns the last query with the last key, as a chunk after cached tokens needs
it, and lets torch use flash attention. `is_causal` would align the first query with the first key.
With a mask and heads that share keys, torch uses a kernel that holds all scores in memory; so keys
are expanded where a window needs a mask. Only GPUs of CUDA and ROCm have flash attention. On a CPU,
torch turns `causal_lower_right` into a mask. This class is tested so.

Import this module only for a GPU: it imports torch's compiler, which takes a second.
"""

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.attention.bias import CausalBias, causal_lower_right

from potluck.engine.layers.attention import ExpandedAttention, Span, Step


class AlignedAttention(ExpandedAttention):
    """Expand keys only if there is a mask, else use flash attention."""

    __slots__ = ()

    def _mask(self, step: Step, span: Span) -> Tensor | None:
        if span.is_causal and step.position > 0:
            return causal_lower_right(step.tokens, span.length)  # takes 7 µs and allocates nothing
        return super()._mask(step, span)

    def _expands(self, mask: Tensor | None) -> bool:
        return mask is not None and not isinstance(mask, CausalBias)


def has_flash(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch has flash attention here for shared keys and a chunk after cached tokens."""
    queries, keys = (
        torch.empty(shape, dtype=dtype, device=device) for shape in ((1, 4, 8, 64), (1, 2, 24, 64))
    )
    return can_use_flash_attention(SDPAParams(queries, keys, keys, None, 0.0, False, True))
