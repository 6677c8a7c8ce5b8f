"""Which files of a repository make up a model, and in which forms the repository has it.

A repository may hold the same weights many times: in safetensors, in several GGUF quantisations, as pickle
files, for other programs. A variant is one form that Potluck reads, with the few files that it needs.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from potluck.api.values.hub import Format
from potluck.model.families.table import WITH_TEXT
from potluck.model.quantized import GGUF_BLOCKS
from potluck.store.gguf_files import LABEL

SAFETENSORS = "safetensors"
TEMPLATES = frozenset({"chat_template.jinja", "chat_template.json"})
_WORDS = (
    "hf_quant_config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tiktoken.model",
    "tekken.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/tool_use.jinja",
)
TIKTOKEN = ".tiktoken"
# The layout of Hugging Face counts; only where it is missing, that of Mistral.
_LAYOUTS = (("config.json", "model"), ("params.json", "consolidated"))
_SHARD = r"-\d{5}-of-\d{5}\.safetensors"
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})")
_KIND = re.compile(r"(?:UD-)?(?P<kind>IQ4_NL|IQ\d_[A-Z]+|Q\d_K|Q\d_\d|BF16|F16|F32)")
_PLAIN = ("F32", "F16", "BF16")
_PROJECTORS = ("F16", "BF16", "F32", "Q8_0")  # F32 takes twice the bytes, and is held in 16 bits
_OFFSETS = ("Q4_1", "Q4_K")
_MAX_VARIANTS = 64
_SHA256_DIGITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file of a repository."""

    name: str  # its path in the repository
    nbytes: int
    digest: str  # SHA-256 or, if it lies in git itself, git's SHA-1

    def new_hash(self) -> "hashlib._Hash":
        """Return what computes the digest of its bytes."""
        if len(self.digest) == _SHA256_DIGITS:
            return hashlib.sha256()
        header = b"blob %d\0" % self.nbytes  # git begins with it
        return hashlib.sha1(header, usedforsecurity=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteVariant:
    """One form of a repository's model. Small files come first, so that weights are the last to be there."""

    name: str
    format: Format
    files: tuple[RemoteFile, ...]

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files)


def is_safe(name: str) -> bool:
    """Whether a file of a repository can only be inside of its folder, on every system."""
    parts = name.split("/")
    return name.isprintable() and not any(
        part in ("", ".", "..") or any(sign in part for sign in '\\:*?"<>|') for part in parts
    )


def variants_of(files: Iterable[RemoteFile], *, can_see: bool = False) -> tuple[RemoteVariant, ...]:
    """The forms that Potluck can read, the largest (and so the most exact) first.

    Args:
        files: of a repository.
        can_see: whether GGUF models of it are downloaded with their projector.
    """
    here = {file.name: file for file in files}
    found = [*_safetensors(here), *_gguf(here, can_see=can_see)]
    return tuple(sorted(found, key=lambda variant: -variant.nbytes)[:_MAX_VARIANTS])


def _safetensors(here: Mapping[str, RemoteFile]) -> list[RemoteVariant]:
    for config, stem in _LAYOUTS:
        whole, shard = f"{stem}.safetensors", re.compile(stem + _SHARD)
        shards = [file for name, file in sorted(here.items()) if shard.fullmatch(name)]
        weights = [here[whole]] if whole in here else shards
        if weights and config in here:
            names = (config, *_WORDS, f"{stem}.safetensors.index.json")
            words = [here[name] for name in names if name in here]
            words += [file for name, file in here.items() if name.endswith(TIKTOKEN)]
            return [RemoteVariant(name=SAFETENSORS, format="safetensors", files=(*words, *weights))]
    return []


def _gguf(here: Mapping[str, RemoteFile], *, can_see: bool) -> list[RemoteVariant]:
    """The GGUF models, without importance matrices and types that nothing reads."""
    models: dict[str, list[RemoteFile]] = {}
    for name, file in sorted(here.items()):
        path = PurePosixPath(name)
        if path.suffix.lower() == ".gguf" and not _is_projector(path):
            part = _PART.fullmatch(path.stem)
            stem = str(path.with_name(part["stem"] if part else path.stem))
            models.setdefault(stem, []).append(file)
    found: dict[str, RemoteVariant] = {}
    for stem, parts in models.items():
        plain = PurePosixPath(stem).name
        label = found_label["label"].upper() if (found_label := LABEL.fullmatch(plain)) else None
        is_weights = "imatrix" not in plain.lower() and is_whole(parts)
        if not is_weights or (label is not None and not _is_readable(label)):
            continue
        name = stem if label is None or label in found else label
        projector = _projectors(here, PurePosixPath(stem).parent)[:1] if can_see else ()
        found[name] = RemoteVariant(name=name, format="gguf", files=(*parts, *projector))
    return list(found.values())


def _is_projector(path: PurePosixPath) -> bool:
    return path.suffix.lower() == ".gguf" and "mmproj" in path.name.lower()


def _projectors(here: Mapping[str, RemoteFile], folder: PurePosixPath) -> list[RemoteFile]:
    """What sees for the models in a folder of the repository, the form that is best to have first."""
    paths = [path for path in map(PurePosixPath, here) if path.parent == folder]

    def rank(path: PurePosixPath) -> tuple[int, str]:
        found = LABEL.fullmatch(path.stem)
        label = found["label"].upper() if found else ""
        return _PROJECTORS.index(label) if label in _PROJECTORS else len(_PROJECTORS), path.name

    return [here[str(path)] for path in sorted(filter(_is_projector, paths), key=rank)]


def is_whole(parts: Sequence[RemoteFile]) -> bool:
    """Whether all parts of a GGUF model are there."""
    first = _PART.fullmatch(PurePosixPath(parts[0].name).stem)
    return len(parts) == (int(first["count"]) if first else 1)


def _is_readable(label: str) -> bool:
    kind = kind_of(label)
    return kind in GGUF_BLOCKS or kind in _PLAIN


def kind_of(label: str) -> str | None:
    """The type of most tensors of a GGUF model with this label: Q4_K for Q4_K_M; None: no such label."""
    found = _KIND.match(label)
    return found["kind"] if found else None


def quantised_config(config: Mapping[str, object], label: str) -> dict[str, object] | None:
    """What a GGUF file with this label says as a config, by the config of the model that it was made from.

    Which tensors are stored in more bits, the file itself says; until it is here, this follows llama.cpp's
    rule for the mixtures (`llama_tensor_get_type`): the values and the down-projections of about half of
    the layers have 6 bits in Q4_K_M, and the head has 6 in both.

    Returns:
        None if the label says nothing.
    """
    if (kind := kind_of(label)) is None:
        return None
    quantization: dict[str, object] = {
        "quant_method": "gguf",
        "bits": {"F32": 32, "F16": 16, "BF16": 16}.get(kind)
        or int(next(char for char in kind if char.isdecimal())),
        "sym": kind in ("Q4_0", "Q8_0"),
    }
    text = config.get("text_config")
    layers = (text if isinstance(text, dict) else config).get("num_hidden_layers")
    if kind in _OFFSETS and isinstance(layers, int):
        is_mixture = label.endswith(("_M", "_L", "_XL"))
        finer = [i for i in range(layers) if is_mixture and _has_more_bits(i, layers)]
        quantization["finer"] = {"qkv": finer, "output": [], "gate_up": [], "down": finer}
        quantization["coarse_head"] = False
        quantization["super_blocks"] = kind != "Q4_1"
    return {**_as_text(config), "quantization_config": quantization}


def _has_more_bits(layer: int, layers: int) -> bool:
    """llama.cpp's `use_more_bits`."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2


def _as_text(config: Mapping[str, object]) -> Mapping[str, object]:
    """GGUF files have a multimodal model's decoder alone."""
    text = config.get("text_config")
    names = config.get("architectures")
    if not isinstance(text, dict) or not isinstance(names, list) or not names:
        return config
    families = WITH_TEXT.get(str(names[0]), {})
    family = families.get(str(text.get("model_type")), next(iter(families.values()), None))
    return config if family is None else {**text, "architectures": [family]}
