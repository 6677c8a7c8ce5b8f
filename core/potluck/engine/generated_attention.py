"""Attention as a CPU's kernels compute it: two calls between the matrices, in whatever the cache holds."""

from torch import Tensor

from potluck.engine.attention import Attention, Heads, Step
from potluck.engine.kernels.attention_kernel import Heads as HeadsShape
from potluck.engine.kernels.generated import GeneratedKernels
from potluck.engine.kvcache import LayerCache
from potluck.engine.linear import Linear
from potluck.engine.norms import HeadNorm, ProjectionNorm


class GeneratedAttention(Attention):
    """With hidden states in f32."""

    __slots__ = ("_kernels", "_norm", "shape")

    def __init__(
        self,
        heads: Heads,
        qkv: Linear,
        qk_norm: HeadNorm | ProjectionNorm | None,
        output: Linear,
        *,
        kernels: GeneratedKernels,
        softcap: float | None,
        cache_kind: int,
    ) -> None:
        super().__init__(heads, qkv, qk_norm, output)
        self._kernels = kernels
        self._norm = None if qk_norm is None else qk_norm.weight
        self.shape = HeadsShape(
            heads=heads.queries,
            kv_heads=heads.keys,
            head_dim=heads.size,
            rotary_dim=heads.rotary_dim,
            qk_norm=None if qk_norm is None else qk_norm.kind,
            epsilon=0.0 if qk_norm is None else qk_norm.eps,
            scale=heads.scale,
            softcap=softcap,
            cache_kind=cache_kind,
        )
        kernels.prepare(self.shape)

    def __call__(self, x: Tensor, cache: LayerCache, step: Step) -> Tensor:
        qkv, memory = self.qkv(x), cache.both
        row = step.position - cache.first  # all that the kernels need a position for
        angles = None if self.rope is None else step.angles[self.rope]
        self._kernels.rotate(self.shape, qkv, memory, row, angles, self._norm)
        attended = self._kernels.attend(self.shape, qkv, memory, row, self.window)
        return self.output(attended)
