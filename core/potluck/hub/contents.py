"""What the files of a model on this computer say about it: its config, read once while they do not change."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from potluck.errors import BrokenModelError
from potluck.model.config import ModelConfig
from potluck.reasons import reason
from potluck.store.model_folder import config_file, read_config


@dataclass(frozen=True, slots=True)
class Content:
    """What was read of a model.

    Attributes:
        config: in the form of Hugging Face.
        parameters: how many it has.
        context: tokens of the longest conversation that it was made for.
        sees: whether it reads pictures here.
    """

    config: Mapping[str, object]
    parameters: int
    context: int
    sees: bool


class Contents:
    """Reads models' configs. It blocks: call it in a thread."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int, int], Content]] = {}

    def read(self, path: Path) -> Content:
        """Read a model's config, unless its file is as it was when this was last done.

        Args:
            path: of its folder, or of its GGUF file.

        Raises:
            ModelError: it is broken, or of no model that can be run.
        """
        file = config_file(path) if path.is_dir() else path
        try:
            status = file.stat()
            # Beside a GGUF file may come what sees for it.
            beside = 0 if path.is_dir() else path.parent.stat().st_mtime_ns
            stamp = status.st_mtime_ns, status.st_size, beside
            if (known := self._known.get(path)) is not None and known[0] == stamp:
                return known[1]
            content = _read(path, file)
        except (OSError, ValueError, RecursionError) as error:
            raise BrokenModelError(f"{file.name} cannot be read: {reason(error)}.") from error
        self._known[path] = stamp, content
        return content


def _read(path: Path, file: Path) -> Content:
    if path.is_dir():
        config = read_config(path)
    else:
        # Imported here: importing `gguf` takes a tenth of a second, and only GGUF models need it.
        from potluck.store.gguf_model import read_gguf

        config = read_gguf(path)
    model = ModelConfig.from_dict(config)
    tensors = model.stage_tensors(range(model.num_layers), embedding=True, head=True)
    return Content(
        config=config,
        parameters=sum(map(prod, tensors.values())),
        context=model.max_position,
        sees=model.tower is not None,
    )
