"""Which of a prompt's hidden states become its embedding, as a model's folder says."""

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from potluck.files import without_mark

logger = logging.getLogger(__name__)

POOLING = "1_Pooling/config.json"  # as Sentence Transformers writes it
LAST = "lasttoken"
_MODE = "pooling_mode_"
_MODES: Mapping[int, str] = {1: "mean_tokens", 2: "cls_token", 3: LAST}  # as GGUF counts them


def load_pooling(folder: Path) -> str:
    """The name of a model's pooling, such as `mean_tokens`; that of the last token, if the folder says nothing.

    A file that cannot be read is logged and ignored: it is no reason to refuse the model.
    """
    try:
        found = msgspec.json.decode(
            without_mark((folder / POOLING).read_bytes()), type=dict[str, msgspec.Raw]
        )
    except FileNotFoundError:
        return LAST
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        logger.warning("%s is ignored: %s", POOLING, error)
        return LAST
    modes = [name.removeprefix(_MODE) for name, value in found.items() if bytes(value) == b"true"]
    return next((name for name in modes if name != "include_prompt"), LAST)


def pooling_of_gguf(metadata: Mapping[str, object]) -> bytes | None:
    """The same file for a GGUF model; None: its metadata say nothing."""
    number = metadata.get(f"{metadata.get('general.architecture')}.pooling_type")
    mode = _MODES.get(number) if isinstance(number, int) else None
    return None if mode is None else msgspec.json.encode({_MODE + mode: True})
