"""All shapes by their names, and the one that is measured where none is named."""

from collections.abc import Mapping

from potluck.model.shapes.gemma import GEMMA
from potluck.model.shapes.llama import LLAMA
from potluck.model.shapes.mixtures import MIXTURES
from potluck.model.shapes.qwen import QWEN

SHAPES: Mapping[str, Mapping[str, object]] = {**LLAMA, **QWEN, **MIXTURES, **GEMMA}
DEFAULT_SHAPE = "llama-1b"
