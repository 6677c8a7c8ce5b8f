"""GGUF files as models: tensors under Hugging Face names, tokenizer and config in a folder.

Tensors are digested and sent as they are in the file. The loader knows their block format from the
dtype (`GGUF_Q4_K`). The file has all experts of a layer in one tensor, which is cut into experts by
byte ranges. The tokenizer and the config ("words") are written into a folder beside the digests, so
that other code reads them as those of a safetensors model. Opening a model removes the folders of
files that are gone.
"""

import hashlib
import json
import logging
import re
import shutil
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TypeAlias

import msgspec
from gguf import MODEL_ARCH_NAMES, TensorNameMap

from potluck.errors import BrokenModelError
from potluck.files import write_atomically
from potluck.ids import short
from potluck.model.checkpoint.stacked import stack_slices
from potluck.model.config import ModelConfig
from potluck.model.gguf.config import FACTORS, read_gguf_config
from potluck.model.gguf.families import GGUF_FAMILIES
from potluck.model.gguf.keys import Config, GgufFile
from potluck.model.gguf.words import read_gguf_words
from potluck.model.limits import MAX_HEAD_DIM
from potluck.model.manifest import TensorSpan
from potluck.model.quantized import Shape
from potluck.model.text.pooling import POOLING, pooling_of_gguf
from potluck.store.digests import ModelFile, Stamp
from potluck.store.gguf_files import gguf_parts
from potluck.store.gguf_header import GgufTensor
from potluck.store.gguf_part import GgufPart
from potluck.store.gguf_projector import Seeing, see

logger = logging.getLogger(__name__)

WORDS_VERSION = 5  # increase it when the words made from the same file change
_EXPERT = re.compile(
    r"(?P<before>.+\.experts)\.(?P<expert>\d+)(?P<after>\..+)\.(?P<kind>weight|bias)"
)
_PART = re.compile(r"model\.layers\.(?P<layer>\d+)\.(?P<rest>.+)")
_FUSED = re.compile(
    r"(?P<before>model\.layers\.(?P<layer>\d+)\.self_attn\.)[qkv]_proj\.(?P<kind>weight|bias)"
)
_OF_ALL_LAYERS = re.compile(r"model\.layers\.\d+\.(?P<rest>per_layer_model_projection\.weight)")
# Parts of names that a file has otherwise than the map of `gguf`, or that are no tensors of their own there.
_SPELLINGS: Mapping[str, str] = {
    "_correction_bias": "_correction.bias",
    ".router_bias": ".router_bias.bias",
    ".expert_bias": ".expert_bias.bias",
    ".dt_bias": ".dt_proj.bias",
    "layer_scalar": "layer_scalar.weight",
    "router.scale": "router.proj.scale",
    "router.per_expert_scale": "experts.down_proj.scale",
}
# Where the map has some families' tensors, as their files had them: tried in this order.
_PLACES: Mapping[str, str] = {
    "": "",
    "model.layers.": "backbone.layers.",
    ".mixer.experts.": ".mlp.experts.",
    "model.norm.": "model.embedding_norm.",
    ".experts.w1": ".experts.gate_proj",
    ".experts.w2": ".experts.down_proj",
    ".experts.w3": ".experts.up_proj",
}
_SUFFIXES = (".weight", ".bias", ".scale")
_HALVES: Mapping[str, int] = {".gate_proj": 0, ".up_proj": 1}  # of an expert's gates and ups in one
_RECORD = "made.json"
PREPROCESSING = "preprocessor_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedGguf:
    """An opened GGUF model, from which the registry makes a `LocalModel`."""

    raw: Config  # as in a Hugging Face config.json
    config: ModelConfig
    spans: Mapping[str, tuple[ModelFile, TensorSpan]]
    words: Path  # the folder with the tokenizer
    blind: str | None  # a sentence: why it reads no pictures, although there is a projector


class _Made(msgspec.Struct, frozen=True):
    """The file from which the words in a folder were made, or are being made."""

    version: int
    path: str
    stamp: Stamp | None  # None: words are incomplete, or the file may have changed unnoticed


def open_gguf(path: Path, *, cache_dir: Path) -> OpenedGguf:
    """Read and check a model's headers, and write its tokenizer and config files.

    Raises:
        ModelError: the files are broken, or the model cannot be run.
        OSError: they cannot be read.
    """
    parts, tensors = _read_parts(path)
    metadata = parts[0].header.metadata
    seeing = _seeing(path, parts, tensors)
    config = ModelConfig.from_dict(seeing.raw)
    architecture = str(metadata["general.architecture"])
    return OpenedGguf(
        raw=seeing.raw,
        config=config,
        spans={**_spans(config, architecture, tensors), **seeing.spans},
        words=_write_words(parts[0].file, seeing, metadata, cache_dir),
        blind=seeing.blind,
    )


def read_gguf(path: Path) -> Config:
    """The config of a model, in the form of Hugging Face; nothing is written.

    Raises:
        ModelError: the files are broken, or the model cannot be run.
        OSError: they cannot be read.
    """
    return _seeing(path, *_read_parts(path)).raw


_Tensors: TypeAlias = Mapping[str, tuple[GgufPart, GgufTensor]]


def _read_parts(path: Path) -> tuple[list[GgufPart], _Tensors]:
    parts = [GgufPart.read(part) for part in gguf_parts(path)]
    tensors: dict[str, tuple[GgufPart, GgufTensor]] = {}
    for part in parts:
        for name, tensor in part.header.tensors.items():
            if name in tensors:
                raise BrokenModelError(f"{path.name} has the tensor {name} twice.", file=path.name)
            tensors[name] = (part, tensor)
    return parts, tensors


def _seeing(path: Path, parts: Sequence[GgufPart], tensors: _Tensors) -> Seeing:
    """The config of a model, with its vision tower if that lies beside it."""
    file = GgufFile(
        # All fields of a split model are in its first file, which often has no tensors.
        metadata=parts[0].header.metadata,
        shapes={name: tensor.shape for name, (_, tensor) in tensors.items()},
        kinds={name: tensor.kind for name, (_, tensor) in tensors.items()},
        factors={name: _numbers(*tensors[name]) for name in FACTORS if name in tensors},
    )
    return see(path, file, read_gguf_config(file))


def _numbers(part: GgufPart, tensor: GgufTensor) -> tuple[float, ...]:
    """Read the numbers of a small f32 tensor."""
    if tensor.kind != "F32" or len(tensor.shape) != 1 or not 0 < tensor.shape[0] <= MAX_HEAD_DIM:
        raise BrokenModelError(
            f"{part.file.path.name} has {tensor.name} as {tensor.kind} {list(tensor.shape)}, where"
            " a few numbers of F32 should be. Download the file again.",
            tensor=tensor.name,
        )
    with part.file.path.open("rb") as file:
        file.seek(tensor.offset)
        data = file.read(tensor.nbytes)
    if len(data) != tensor.nbytes:
        raise BrokenModelError(f"{part.file.path.name} is cut off.", file=part.file.path.name)
    return struct.unpack(f"<{tensor.shape[0]}f", data)


def _spans(
    config: ModelConfig, architecture: str, tensors: Mapping[str, tuple[GgufPart, GgufTensor]]
) -> dict[str, tuple[ModelFile, TensorSpan]]:
    """The model's tensors under their Hugging Face names, without those missing from the files."""
    family = GGUF_FAMILIES[architecture]
    kinds = {name: kind for kind, name in MODEL_ARCH_NAMES.items()}
    names = TensorNameMap(kinds[family.named_as or architecture], config.num_layers)
    found: dict[str, tuple[ModelFile, TensorSpan]] = {}
    wanted = config.stage_tensors(range(config.num_layers), embedding=True, head=True)
    for name, shape in wanted.items():
        expert = _EXPERT.fullmatch(name)
        whole = name if expert is None else f"{expert['before']}{expert['after']}.{expert['kind']}"
        known, half = _own_name(whole, family.names, tensors), None
        for ours, theirs in _SPELLINGS.items():
            whole = whole.replace(ours, theirs)
        known = known or _known(names, whole)
        if f"{known}.weight" in tensors:  # of sinks, which are no matrix
            known += ".weight"
        if known not in tensors and (fused := _FUSED.fullmatch(name)) is not None:
            if (of_all := _fused(fused, wanted, tensors)) is not None:
                found[name] = of_all
            continue
        if (part := _OF_ALL_LAYERS.fullmatch(name)) is not None:
            if (rows := _layer_rows(part, config, tensors)) is not None:
                found[name] = rows
            continue
        if known not in tensors and expert is not None and (after := expert["after"]) in _HALVES:
            joined = names.get_name(f"{expert['before']}.gate_up_proj", _SUFFIXES)
            known, half = (joined + ".weight", _HALVES[after]) if joined else (known, None)
        if known not in tensors and expert is not None:  # the first Mixtrals: a tensor per expert
            known, expert = known.replace("_exps.", f".{expert['expert']}."), None
        if known in tensors:
            part, tensor = tensors[known]
            span = part.span(name, tensor)
            is_short = _long(span.shape) == _long(shape)  # files leave dimensions of one out
            # Rows of heads are in one dimension more.
            has_heads = expert is None and len(span.shape) == len(shape) + 1
            if is_short or (has_heads and (prod(span.shape[:2]), *span.shape[2:]) == shape):
                span = replace(span, shape=shape)
            found[name] = (
                part.file,
                span if expert is None else _slice(span, int(expert["expert"]), half),
            )
    return found


def _known(names: TensorNameMap, whole: str) -> str:
    """The name in files of a tensor of ours; empty: it has none."""
    for ours, theirs in _PLACES.items():
        if (found := names.get_name(whole.replace(ours, theirs, 1), _SUFFIXES)) is not None:
            return found
    return ""


def _own_name(name: str, own: Mapping[str, tuple[str, ...]], tensors: Collection[str]) -> str:
    """What files call a part of a layer that has no name in the map of `gguf`; empty if it has one."""
    found = _PART.fullmatch(name)
    layer, rest = ("", name) if found is None else (f"blk.{found['layer']}.", found["rest"])
    part, _, kind = rest.rpartition(".")
    ends, end = own.get(rest), ""  # of a tensor that has no kind
    if ends is None:
        ends, end = own.get(part, ()), f".{kind}"
    theirs = [f"{one[1:]}{end}" if one[0] == "/" else f"{layer}{one}{end}" for one in ends]
    if not theirs:
        return ""
    return next((one for one in theirs if one in tensors), theirs[0])


def _fused(
    part: re.Match[str], wanted: Mapping[str, Shape], tensors: _Tensors
) -> tuple[ModelFile, TensorSpan] | None:
    """The rows of queries, keys or values, where a file has them in one tensor."""
    name, kind = part[0], part["kind"]
    if (found := tensors.get(f"blk.{part['layer']}.attn_qkv.{kind}")) is None:
        return None
    all_parts = [f"{part['before']}{one}_proj.{kind}" for one in "qkv"]
    rows = [wanted[one][0] for one in all_parts if one in wanted]
    file, tensor = found
    span = file.span(name, tensor)
    if span.shape[:1] != (sum(rows),):
        return file.file, span  # the check of shapes will refuse it
    index, each = all_parts.index(name), span.nbytes // sum(rows)
    return file.file, replace(
        span,
        shape=(rows[index], *span.shape[1:]),
        offset=span.offset + sum(rows[:index]) * each,
        nbytes=rows[index] * each,
    )


def _layer_rows(
    part: re.Match[str], config: ModelConfig, tensors: _Tensors
) -> tuple[ModelFile, TensorSpan] | None:
    """A layer's rows of the matrix of all layers."""
    if (found := tensors.get("per_layer_model_proj.weight")) is None:
        return None
    file, tensor = found
    span = file.span(part[0], tensor)
    slices = stack_slices(config, f"model.{part['rest']}", span.shape, span.nbytes)
    own = next((one for one in slices if one.name == part[0]), None)
    if own is None:
        return file.file, span  # the check of shapes will refuse it
    offset = span.offset + own.offset
    return file.file, replace(span, shape=own.shape, offset=offset, nbytes=own.nbytes)


def _long(shape: Shape) -> Shape:
    """The dimensions of more than one."""
    return tuple(size for size in shape if size != 1)


def _slice(whole: TensorSpan, index: int, half: int | None) -> TensorSpan:
    """One matrix of a tensor of shape (count, rows, inputs), or a half of its rows; or one bias of (count, rows)."""
    if len(whole.shape) not in (2, 3) or index >= whole.shape[0]:
        return whole  # the check of shapes will refuse it
    count, *shape = whole.shape
    if half is not None:
        count, shape[0], index = 2 * count, shape[0] // 2, 2 * index + half
    nbytes = whole.nbytes // count
    return replace(whole, shape=tuple(shape), offset=whole.offset + index * nbytes, nbytes=nbytes)


def _write_words(
    file: ModelFile, seeing: Seeing, metadata: Mapping[str, object], cache_dir: Path
) -> Path:
    """Write what the file says of the model's tokenizer and config."""
    _forget_gone(cache_dir / "gguf")
    folder = cache_dir / "gguf" / hashlib.sha256(str(file.path).encode()).hexdigest()
    config = {key: value for key, value in seeing.raw.items() if key != "quantization_config"}
    write_atomically(folder / "config.json", json.dumps(config).encode())
    write_atomically(folder / PREPROCESSING, json.dumps(seeing.preprocessing).encode())
    made = msgspec.json.encode(_Made(WORDS_VERSION, str(file.path), file.stamp))
    record = folder / _RECORD
    if not record.is_file() or record.read_bytes() != made:
        # A crash from here on leaves a record that the words are incomplete.
        making = _Made(WORDS_VERSION, str(file.path), None)
        write_atomically(record, msgspec.json.encode(making))
        # Those of another file, which was here before.
        for name in ("tokenizer.json", POOLING):
            (folder / name).unlink(missing_ok=True)
        for name, data in read_gguf_words(metadata).items():
            write_atomically(folder / name, data)
        if (pooling := pooling_of_gguf(metadata)) is not None:
            write_atomically(folder / POOLING, pooling)
        if file.stamp.is_settled:
            write_atomically(record, made)
    return folder


def _forget_gone(words: Path) -> None:
    """Remove the words of files that no longer exist. For a replaced file they are made again."""
    for record in words.glob(f"*/{_RECORD}"):
        try:
            made = msgspec.json.decode(record.read_bytes(), type=_Made)
            if Path(made.path).is_file():
                continue
        except msgspec.MsgspecError:
            pass  # a record of an older version, for an unknown file
        except OSError:
            continue  # another thread is removing it
        logger.info("words of a file that is gone are removed folder=%s", short(record.parent.name))
        shutil.rmtree(record.parent, ignore_errors=True)
