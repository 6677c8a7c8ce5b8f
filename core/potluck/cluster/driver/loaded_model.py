"""A model that is loaded, with all that its answers need."""

from dataclasses import dataclass, field

from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.model_text import ModelText
from potluck.cluster.driver.pixel_room import PixelRoom
from potluck.errors import UsageError
from potluck.model.defaults import GenerationDefaults
from potluck.model.text.pooling import LAST
from potluck.model.vision.spec import TowerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model that is loaded and can answer.

    Attributes:
        text: its tokenizer and its chat template.
        defaults: sampling that its makers recommend.
        generator: computes its tokens.
        stage_names: the computer of each stage, in the order of the pipeline.
        vocab_size: how many token ids its weights know; a tokenizer may know others.
        pooling: which hidden states are its embedding: see `potluck.model.text.pooling`.
        tower: what reads its pictures; None: it reads text alone.
        blind: why it does, although there is a file with a tower; a sentence.
        pixels: the room that the pictures of all prompts share, also those of other models.
    """

    text: ModelText
    defaults: GenerationDefaults
    generator: Generator
    stage_names: tuple[str, ...]
    vocab_size: int
    pooling: str = LAST
    tower: TowerSpec | None = None
    blind: str | None = None
    pixels: PixelRoom = field(default_factory=PixelRoom)

    def check_embeds(self) -> None:
        """Raise UsageError for a model whose embeddings are not that of the last token."""
        if self.pooling != LAST:
            raise UsageError(
                f"The embeddings of this model are made of several tokens ({self.pooling}), and Potluck"
                " gives that of the last token alone. Ask for those of another model."
            )
