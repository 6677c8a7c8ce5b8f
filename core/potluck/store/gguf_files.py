"""Finds the GGUF files of a model: one file, or several named `…-00001-of-00003.gguf`."""

import re
from pathlib import Path

from potluck.errors import BrokenModelError, UsageError
from potluck.store.ollama import blob_name, is_blob

SUFFIX = ".gguf"
MAX_PARTS = 1024
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def is_gguf(path: Path) -> bool:
    """Whether the path names a GGUF file, also in Ollama's store; the file is not read."""
    return path.suffix.lower() == SUFFIX or is_blob(path)


def find_gguf(path: Path) -> Path | None:
    """The GGUF file at this path, or the only one in this folder; None: there is none.

    Raises:
        UsageError: the folder has several models.
    """
    if path.is_file():
        return path if is_gguf(path) else None
    files = gguf_files(path)
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:5])
        raise UsageError(
            f"{path} holds {len(files)} GGUF models: {names}. Choose one of the files.",
            folder=str(path),
        )
    return files[0] if files else None


def gguf_files(folder: Path) -> list[Path]:
    """The first file of each GGUF model in a folder, without vision projectors (`mmproj`)."""
    files: list[Path] = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        part = _PART.fullmatch(path.name)
        if not path.name.startswith("mmproj") and (part is None or int(part["number"]) == 1):
            files.append(path)
    return files


def gguf_parts(path: Path) -> list[Path]:
    """All files of the model whose first file this is.

    Raises:
        BrokenModelError: one of them is missing.
    """
    part = _PART.fullmatch(path.name)
    if part is None:
        return [path]
    count = int(part["count"])
    if not 0 < count <= MAX_PARTS:
        raise BrokenModelError(f"{path.name} cannot be one of {count} files.", file=path.name)
    names = [f"{part['stem']}-{number + 1:05}-of-{count:05}.gguf" for number in range(count)]
    missing = [name for name in names if not (path.parent / name).is_file()]
    if missing:
        raise BrokenModelError(
            f"{path.parent} lacks {missing[0]}: {len(missing)} of the model's {count} files are"
            " missing. The download is not complete; start it again.",
            file=missing[0],
        )
    return [path.parent / name for name in names]


def gguf_name(path: Path) -> str:
    """The file's name without its ending and without its part number; in Ollama's store the model's."""
    if is_blob(path):
        return blob_name(path)
    part = _PART.fullmatch(path.name)
    return part["stem"] if part is not None else path.stem
