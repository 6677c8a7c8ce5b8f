"""Finds the vision tower of a GGUF model: its projector (`mmproj`), a file beside it, or within its own file.

A model whose projector is damaged, of another model, or of a kind that nothing computes reads and writes text all the same.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from potluck.errors import BrokenModelError, ModelError
from potluck.model.checkpoint.stored import find_stored
from potluck.model.config import ModelConfig
from potluck.model.gguf.keys import Config, GgufFile
from potluck.model.manifest import TensorSpan
from potluck.model.vision.inner import has_inner_tower, inner_config, inner_names
from potluck.model.vision.projector import preprocessing, projector_names, seeing_config
from potluck.model.vision.spec import TowerSpec
from potluck.reasons import reason
from potluck.store.digests import ModelFile
from potluck.store.gguf_files import projectors
from potluck.store.gguf_part import GgufPart
from potluck.store.model_folder import Spans

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeing:
    """A model with its projector, if it has one.

    Attributes:
        raw: the config, as in a `config.json`.
        preprocessing: as in a `preprocessor_config.json`.
        spans: the tensors of the tower.
        blind: why it reads no pictures, although there is a projector; a sentence.
    """

    raw: Config
    preprocessing: Config = field(default_factory=Config)
    spans: Spans = field(default_factory=dict[str, tuple[ModelFile, TensorSpan]])
    blind: str | None = None


def see(model: Path, decoder: GgufFile, raw: Config) -> Seeing:
    """Find the projector of a model, and read its header.

    Args:
        model: its (first) file.
        decoder: what that says.
        raw: the config that was made of it.
    """
    blind: str | None = None
    for path in projectors(model):
        try:
            return _read(path, decoder, raw)
        except ModelError as error:
            blind = blind or error.message
        except OSError as error:
            blind = blind or f"{path.name} cannot be read: {reason(error)}."
    if has_inner_tower(decoder):
        try:
            return _read_inner(model, decoder, raw)
        except ModelError as error:
            blind = blind or error.message
    if blind is not None:
        logger.info("a model reads text alone model=%s why=%s", model.name, blind)
    return Seeing(raw=raw, blind=blind)


def _read(path: Path, decoder: GgufFile, raw: Config) -> Seeing:
    part = GgufPart.read(path)
    tensors = part.header.tensors
    file = GgufFile(
        metadata=part.header.metadata,
        shapes={name: tensor.shape for name, tensor in tensors.items()},
        kinds={name: tensor.kind for name, tensor in tensors.items()},
        factors={},
    )
    whole = seeing_config(raw, decoder, file, path.name)
    names = partial(projector_names, projector=file)
    return replace(_found(part, whole, names), preprocessing=preprocessing(file))


def _read_inner(model: Path, decoder: GgufFile, raw: Config) -> Seeing:
    """The tower in a model's own file, as Ollama writes it."""
    return _found(GgufPart.read(model), inner_config(raw, decoder), inner_names)


def _found(
    part: GgufPart, whole: Config, names: Callable[[TowerSpec], Mapping[str, str]]
) -> Seeing:
    """The whole model: its own tensors, and those of the tower, which this file has under these names."""
    path, tensors = part.file.path, part.header.tensors
    config = ModelConfig.from_dict(whole)
    if (tower := config.tower) is None:
        raise BrokenModelError(
            f"{path.name} describes a tower of sizes that Potluck does not compute.",
            file=path.name,
        )
    spans = {
        ours: part.span(ours, tensors[theirs])
        for ours, theirs in names(tower).items()
        if theirs in tensors
    }
    find_stored(config, config.tower_tensors(), spans, where=path.name)
    return Seeing(
        raw=whole,
        spans={name: (part.file, span) for name, span in spans.items()},
    )
