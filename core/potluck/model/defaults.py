"""The sampling parameters that a model's `generation_config.json` recommends."""

import logging
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from potluck.files import without_mark

logger = logging.getLogger(__name__)


class GenerationDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """None: the model recommends no value. The bounds are those of the messages on the wire."""

    do_sample: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_k: Annotated[int, Meta(ge=0, lt=1 << 31)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None


def load_defaults(folder: Path) -> GenerationDefaults:
    """Read the recommendations in a model's folder.

    A file that cannot be read is logged and ignored: it is no reason to refuse the model.
    `"do_sample": false` means greedy, whatever the temperature is.
    """
    try:
        data = without_mark((folder / "generation_config.json").read_bytes())
        defaults = msgspec.json.decode(data, type=GenerationDefaults)
    except FileNotFoundError:
        return GenerationDefaults()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        logger.warning("generation_config.json is ignored: %s", error)
        return GenerationDefaults()
    if defaults.do_sample is False:
        return msgspec.structs.replace(defaults, temperature=0.0)
    return defaults
