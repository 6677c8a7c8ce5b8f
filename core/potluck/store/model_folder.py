"""Reads a folder with a model in safetensors: its config, and the headers of its weights.

Hugging Face's layout has `config.json` and `model.safetensors`, or several files and an index; Mistral's own has
`params.json` and `consolidated.safetensors`. All functions block. Files are never executed or unpickled.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TypeAlias, cast

from potluck.errors import BrokenModelError, InvalidConfigError, UsageError, format_bytes
from potluck.model.checkpoint.consolidated import config_of_params
from potluck.model.checkpoint.git_pointer import refuse_git_pointer
from potluck.model.manifest import LENGTH_SIZE, TensorSpan, header_length, parse_header
from potluck.store.digests import ModelFile, Stamp
from potluck.store.gguf_files import is_gguf
from potluck.store.no_model import no_config

CONFIG, PARAMS = "config.json", "params.json"  # of Hugging Face and of Mistral
HF_QUANT_CONFIG = (
    "hf_quant_config.json"  # of NVIDIA's Model Optimizer, beside a config that says nothing
)
SUFFIX, INDEX_SUFFIX = ".safetensors", ".safetensors.index.json"
WEIGHTS, INDEX = "model" + SUFFIX, "model" + INDEX_SUFFIX
CONSOLIDATED = "consolidated"  # begins the names of Mistral's own files
MAX_JSON = 64 << 20  # bytes of config.json or the index; the largest known index has about 10 MB
_DIGITS = 18  # any number of 18 digits, with its sign, fits 64 bits
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")

Spans: TypeAlias = Mapping[str, tuple[ModelFile, TensorSpan]]
"""Tensors by their names, each with its file."""


def read_config(folder: Path) -> dict[str, object]:
    """The config of the model in a folder, in the form of Hugging Face.

    Raises:
        UsageError: the folder does not exist, or has no model.
        ModelError: the file is damaged, or of a model that Potluck cannot run in this layout.
        OSError: it cannot be read.
    """
    if not folder.is_dir():
        what = f"There is no file {folder}." if is_gguf(folder) else f"There is no folder {folder}."
        raise UsageError(what, folder=str(folder))
    path = config_file(folder)
    if not path.is_file():
        raise no_config(folder)
    try:
        read = _read_json(path)
        beside = folder / HF_QUANT_CONFIG
        if path.name == CONFIG and "quantization_config" not in read and beside.is_file():
            given = _read_json(beside).get("quantization")
            if isinstance(given, dict):
                read["quantization_config"] = {"quant_method": "modelopt", **given}
        return config_of_params(read) if path.name == PARAMS else read
    except BrokenModelError as error:
        raise InvalidConfigError(error.message, **error.data) from error


def config_file(folder: Path) -> Path:
    """The file of a folder that says what its model is made of, which need not exist."""
    path = folder / CONFIG
    if path.is_file() or not (folder / PARAMS).is_file():
        return path
    # Other programs have files of that name too.
    return folder / PARAMS if any(folder.glob(f"{CONSOLIDATED}*{SUFFIX}")) else path


def weight_files(folder: Path) -> list[str]:
    """The safetensors files of the folder's model by its index, or the only one; some may be missing.

    A folder may have a model in two layouts. That of Hugging Face counts, unless none of its weights are there.

    Raises:
        BrokenModelError: an index is damaged.
        OSError: it cannot be read.
    """
    found: list[str] = []
    for whole, index in ((WEIGHTS, INDEX), (CONSOLIDATED + SUFFIX, CONSOLIDATED + INDEX_SUFFIX)):
        if (folder / whole).is_file():
            return [whole]
        if (folder / index).is_file():
            names = sorted(set(_weight_map(folder / index).values()))
            if any((folder / name).is_file() for name in names):
                return names
            found = found or names
    return found or _without_index(folder)


def _without_index(folder: Path) -> list[str]:
    """The files of the only model in a folder that has no index: one file, or all parts of one."""
    names = sorted(path.name for path in folder.glob(f"*{SUFFIX}"))
    names = [name for name in names if not name.startswith("adapter_")]
    parts = [_SHARD.fullmatch(name) for name in names]
    if len(names) == 1 and parts[0] is None:
        return names
    stems = {part["stem"] for part in parts if part is not None}
    is_whole = all(part is not None and int(part["count"]) == len(names) for part in parts)
    return names if is_whole and len(stems) == 1 else []


def read_spans(folder: Path, names: Sequence[str]) -> Spans:
    """Every tensor in these files of the folder, with its file."""
    index = folder / (CONSOLIDATED + INDEX_SUFFIX if names[0].startswith(CONSOLIDATED) else INDEX)
    if not index.is_file() or names[0] in (WEIGHTS, CONSOLIDATED + SUFFIX):
        whole = [read_header(folder / name) for name in names]
        return {span.name: (file, span) for file in whole for span in file.spans}
    weight_map = _weight_map(index)
    missing = sorted({name for name in weight_map.values() if not (folder / name).is_file()})
    if missing:
        raise BrokenModelError(
            f"{folder} lacks {', '.join(missing[:3])}{' and more' if len(missing) > 3 else ''}:"
            f" {len(missing)} of {len(set(weight_map.values()))} files with weights are missing."
            " The download is not complete; start it again.",
            file=missing[0],
        )
    files = {name: read_header(folder / name) for name in sorted(set(weight_map.values()))}
    by_shard = {name: {span.name: span for span in file.spans} for name, file in files.items()}
    for tensor, shard in weight_map.items():
        if tensor not in by_shard[shard]:
            raise BrokenModelError(
                f"{index.name} expects tensor {tensor} in {shard}, which holds {len(by_shard[shard])}"
                " others. The index is of another model: take it from the repository of these files.",
                tensor=tensor,
                file=shard,
            )
    return {tensor: (files[shard], by_shard[shard][tensor]) for tensor, shard in weight_map.items()}


def _weight_map(index: Path) -> dict[str, str]:
    """Read which file of the folder has which tensor."""
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BrokenModelError(f"{index.name} has no weight_map.", file=index.name)
    for shard in cast("dict[str, object]", weight_map).values():
        if not isinstance(shard, str) or not _is_plain_name(shard):
            raise BrokenModelError(
                f"{index.name} names the file {str(shard)[:80]!r}, which is not a safetensors"
                " file in the model's own folder. Do not trust this model.",
                file=index.name,
            )
    return cast("dict[str, str]", weight_map)


def _is_plain_name(name: str) -> bool:
    """Whether the name is a plain file name on every system, so that it cannot leave its folder."""
    plain = PurePosixPath(name).name == name and PureWindowsPath(name).name == name
    return plain and name.endswith(".safetensors") and name.isprintable()


def read_header(path: Path) -> ModelFile:
    """The tensors of a safetensors file, by its header."""
    stamp = Stamp.of(path)
    with path.open("rb") as file:
        prefix = file.read(LENGTH_SIZE)
        refuse_git_pointer(path, prefix)
        length = header_length(prefix, stamp.size, path.name)
        header = file.read(length)
    spans = parse_header(header, stamp.size, path.name)
    # The path is resolved: the Hub cache links to a blob, which several revisions may share.
    return ModelFile(path.resolve(), stamp, tuple(spans.values()))


def _read_json(path: Path) -> dict[str, object]:
    size = path.stat().st_size
    if size > MAX_JSON:
        raise BrokenModelError(
            f"{path.name} has {format_bytes(size)}; no model's has more than"
            f" {format_bytes(MAX_JSON)}.",
            file=path.name,
        )
    data = path.read_bytes()
    refuse_git_pointer(path, data)
    try:
        value = json.loads(data, parse_int=_number)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair cannot be encoded
    except (ValueError, RecursionError) as error:
        is_page = data.lstrip().startswith(b"<")
        what = (
            "a web page, perhaps one that asks to log in" if is_page else "no JSON: it is damaged"
        )
        raise BrokenModelError(
            f"{path.name} holds {what}. Download this file again, from the model's repository.",
            file=path.name,
        ) from error
    if not isinstance(value, dict):
        raise BrokenModelError(f"{path.name} does not hold a JSON object.", file=path.name)
    return cast("dict[str, object]", value)


def _number(digits: str) -> int | float:
    """Read an integer. Beyond 64 bits, which no message can carry, return the nearest float."""
    return int(digits) if len(digits) <= _DIGITS else float(digits)
