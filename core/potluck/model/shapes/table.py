"""All shapes by their names, and the one that is measured where none is named."""

from collections.abc import Mapping

from potluck.model.shapes.gemma import GEMMA
from potluck.model.shapes.llama import LLAMA
from potluck.model.shapes.mixtures import MIXTURES
from potluck.model.shapes.qwen import QWEN
from potluck.model.shapes.sparse import SPARSE

SHAPES: Mapping[str, Mapping[str, object]] = {**LLAMA, **QWEN, **MIXTURES, **SPARSE, **GEMMA}
DEFAULT_SHAPE = "llama-1b"
