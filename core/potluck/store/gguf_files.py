"""Finds the GGUF files of a model: one file, or several named `…-00001-of-00003.gguf`.

What else lies in such a folder is told by the first fields of each file: the part that sees pictures, adapters,
importance matrices.
"""

import re
import struct
from collections.abc import Iterator
from pathlib import Path

from potluck.errors import BrokenModelError, UsageError
from potluck.store.ollama import blob_name, is_blob, ollama_projectors

SUFFIX = ".gguf"
MAX_PARTS = 1024
_MAX_PROJECTORS = 16  # of a folder; repositories have one in three precisions
_PROJECTOR = frozenset({"clip", "mmproj"})  # an architecture, and a type
_NO_MODELS = _PROJECTOR | {"adapter", "imatrix"}  # and types
_FIRST_FIELDS = 1 << 14  # bytes; these fields come first, before any list
_WIDTHS = (
    1,
    1,
    2,
    2,
    4,
    4,
    4,
    1,
    0,
    0,
    8,
    8,
    8,
)  # bytes of a value of each kind; 0: of its own length
_STRING = 8
# What files call a quantisation: Q4_K_M, UD-IQ2_XXS, MXFP4_MOE.
LABEL = re.compile(
    r"(?:.*?[-._])?(?P<label>(?:UD-)?(?:[IT]?Q\d(?:_\w+)?|MXFP\d\w*|BF16|F16|F32))", re.IGNORECASE
)
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
            f"{path} holds {len(files)} GGUF models: {names}. Choose one: give the path of its file.",
            folder=str(path),
        )
    return files[0] if files else None


def gguf_files(folder: Path) -> list[Path]:
    """The first file of each GGUF model in a folder."""
    files: list[Path] = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        part = _PART.fullmatch(path.name)
        if (part is None or int(part["number"]) == 1) and _is_model(path):
            files.append(path)
    return files


def projectors(model: Path) -> list[Path]:
    """The files with vision towers beside a GGUF model, the largest first, which is the most exact."""
    files: list[Path] = ollama_projectors(model) if is_blob(model) else []
    for folder in () if is_blob(model) else _folders_of_projectors(model):
        files = [path for path in sorted(folder.glob(f"*{SUFFIX}")) if _is_projector(path)]
        if files:
            break
    sizes = {path: path.stat().st_size for path in sorted(files) if path.is_file()}
    return sorted(sizes, key=lambda path: -sizes[path])[:_MAX_PROJECTORS]


def _folders_of_projectors(model: Path) -> Iterator[Path]:
    """Where one may lie: beside the model, or in the cache of Hugging Face above it or in another revision.

    A large quantisation has a folder of its own there, and a file that was fetched later may be of a later revision.
    """
    yield model.parent
    for number, folder in enumerate(model.parents):
        if folder.name == "snapshots" and folder.parent.name.startswith("models--"):
            revision = model.parents[number - 1]
            yield from model.parents[1:number]
            yield from (each for each in sorted(folder.iterdir()) if each != revision)
            return


def quantisations(folder: Path) -> list[Path]:
    """The first files of a folder's GGUF model if it has one in several quantisations, the largest first.

    Empty if it has one file, or several models: what files of one model are called differs in the quantisation.
    Those that are not whole are left out.
    """
    if not folder.is_dir():
        return []
    files = gguf_files(folder)
    labels = [LABEL.fullmatch(gguf_name(file)) for file in files]
    names = {
        gguf_name(file)[: found.start("label")].lower() if found else gguf_name(file)
        for file, found in zip(files, labels, strict=True)
    }
    if len(files) < 2 or len(names) > 1:
        return []
    sizes = {file: _nbytes(file) for file in files}
    return sorted((file for file in files if sizes[file]), key=lambda file: -sizes[file])


def _nbytes(file: Path) -> int:
    """Bytes of a model; 0 if a part of it is missing."""
    try:
        return sum(part.stat().st_size for part in gguf_parts(file))
    except BrokenModelError:
        return 0


def _is_model(path: Path) -> bool:
    """Whether a file has a language model; one that cannot be read may have: opening it says what is wrong."""
    if "mmproj" in path.name.lower():
        return False
    return not _told(path) & _NO_MODELS


def _is_projector(path: Path) -> bool:
    return "mmproj" in path.name.lower() or bool(_told(path) & _PROJECTOR)


def _told(path: Path) -> set[str | None]:
    """Its type and its architecture."""
    fields = dict(_first_texts(path))
    return {fields.get("general.type"), fields.get("general.architecture")}


def _first_texts(path: Path) -> Iterator[tuple[str, str]]:
    """The fields with texts at the beginning of a file, up to the first list."""
    try:
        with path.open("rb") as file:
            data = file.read(_FIRST_FIELDS)
        place = struct.calcsize("<4sIQQ")  # magic, version, counts of tensors and of fields
        while True:
            key, place = _text(data, place)
            (kind,) = struct.unpack_from("<I", data, place)
            place += 4
            if kind == _STRING:
                value, place = _text(data, place)
                yield key, value
            elif width := _WIDTHS[kind]:
                place += width
            else:
                return
    except (OSError, struct.error, IndexError):
        return


def _text(data: bytes, place: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", data, place)
    start, end = place + 8, place + 8 + length
    if end > len(data):
        raise IndexError
    return data[start:end].decode("utf-8", "replace"), end


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
