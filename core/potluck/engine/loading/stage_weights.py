"""The weights and layers of a stage, and which of them another stage can keep."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from potluck.engine.accelerator import Graphs
from potluck.engine.generated.singles import Singles
from potluck.engine.kernels import Kernels
from potluck.engine.layers.beside import Beside
from potluck.engine.layers.blocks import DecoderLayer, Mixer, Run
from potluck.engine.layers.linear import Embedding, Linear
from potluck.engine.layers.streams import FinalNorm
from potluck.engine.pages import Scratch
from potluck.engine.vision.tower import Tower
from potluck.model.config import ModelConfig
from potluck.model.shares import Share


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWeights:
    """The weights and layers of a stage, all on one device."""

    config: ModelConfig  # of a rank's share: what it holds of each layer
    layers: Sequence[int]
    blocks: tuple[DecoderLayer, ...]
    runs: tuple[Run, ...]  # the same layers, as a single token goes through them
    embedding: Embedding | None
    norm: FinalNorm | None  # the final one, or what stands in its place
    lm_head: Linear | None
    is_tied: bool  # embedding and head are one matrix, in the same memory
    dtype: torch.dtype  # of hidden states
    cache_dtype: torch.dtype  # of keys and values
    device: torch.device
    graphs: Graphs | None = None  # of a GPU that has them: one memory pool for layers and head
    is_generated: bool = False  # hidden states of f32, computed by functions generated for this CPU
    singles: Singles | None = (
        None  # the same layers of 16 bits, as tokens of several sessions go through them
    )
    kernels: Kernels | None = None  # that the runs are generated with
    scratch: Scratch  # that the layers share
    share: Share | None = None  # what a rank of a group holds of each layer; None: all of it
    tower: Tower | None = (
        None  # reads pictures, beside the embedding or for a first stage elsewhere
    )

    def keep(
        self, layers: Iterable[int], *, embedding: bool, head: bool, tower: bool = False
    ) -> "StageWeights":
        """The parts of these that a stage of such layers needs, to be given to `build_weights`.

        It has no runs: nothing can be computed with it.
        """
        wanted, reads = set(layers), embedding or tower
        kept = [pair for pair in zip(self.layers, self.blocks, strict=True) if pair[0] in wanted]
        if embedding and head and self.config.tie_word_embeddings and not self.is_tied:
            embedding = head = False  # they are to be one matrix, and here is one of the two alone
        return replace(
            self,
            layers=tuple(layer for layer, _ in kept),
            blocks=tuple(block for _, block in kept),
            runs=(),
            singles=None,
            embedding=self.embedding if embedding else None,
            tower=self.tower if reads else None,
            norm=self.norm if head else None,
            lm_head=self.lm_head if head else None,
            is_tied=self.is_tied and embedding and head,
        )

    def has_all(
        self, layers: Iterable[int], *, embedding: bool, head: bool, tower: bool = False
    ) -> bool:
        """Whether a stage of such layers can compute with just these weights, as they are."""
        reads = (embedding or tower) and self.config.tower is not None
        ends = (self.embedding is not None, self.lm_head is not None, self.tower is not None)
        has_runs = bool(self.runs) == bool(self.blocks)  # what `keep` gave has none
        return has_runs and tuple(self.layers) == tuple(layers) and ends == (embedding, head, reads)

    @property
    def follows(self) -> int | None:
        """How many tokens its first layer sees that one of an earlier stage has chosen; None: it asks none."""
        return self.config.follows(self.layers[0]) if self.layers else None

    @property
    def next_follows(self) -> int | None:
        """The same of the layer behind its last one."""
        return self.config.follows(self.layers[-1] + 1) if self.layers else None

    @property
    def is_exact_in_chunks(self) -> bool:
        """Whether a token gets the same bits however the tokens are cut into steps.

        Then tokens that were computed one by one may be computed again in chunks of any size, and hidden
        states, caches and logits are equal bit by bit. Otherwise only the same steps give the same bits.
        """
        return self.has_generated_mixers

    @property
    def has_generated_mixers(self) -> bool:
        """Whether generated kernels alone read the caches; they also read rows that sessions share."""
        if not self.is_generated:
            return False
        from potluck.engine.generated.attention import GeneratedAttention
        from potluck.engine.generated.channel_delta import GeneratedChannelDeltaNet
        from potluck.engine.generated.convolution import GeneratedConvolution
        from potluck.engine.generated.delta_net import GeneratedDeltaNet
        from potluck.engine.generated.latent import GeneratedLatentAttention
        from potluck.engine.generated.mamba import GeneratedMamba
        from potluck.engine.generated.pooled import GeneratedPooledAttention

        attention = (GeneratedAttention, GeneratedLatentAttention, GeneratedPooledAttention)
        nets = (GeneratedDeltaNet, GeneratedChannelDeltaNet)
        generated = (*attention, *nets, GeneratedMamba, GeneratedConvolution)
        mixers = [one for block in self.blocks for one in _single(block.mixer)]
        return all(isinstance(one, generated) for one in mixers)

    @property
    def computes_together(self) -> bool:
        """Whether tokens of several sessions are computed at once: on a CPU, if each has the bits that it has alone."""
        is_exact = self.singles is not None or self.is_exact_in_chunks
        return is_exact or self.device.type != "cpu"

    @property
    def nbytes(self) -> int:
        parts = [*self.blocks, self.norm, self.lm_head, self.tower]
        parts += [] if self.is_tied else [self.embedding]
        return sum(part.nbytes for part in parts if part is not None)


def _single(mixer: Mixer | None) -> tuple[Mixer, ...]:
    """What a mixer is made of, if it is several."""
    if mixer is None:
        return ()
    return (mixer.attention, mixer.mamba) if isinstance(mixer, Beside) else (mixer,)
