"""Read the files that say how a model reads and writes text: tokenizer, template, special tokens.

They are in the model's folder, in the Hugging Face layout:

    tokenizer.json            the tokenizer; if it is missing, what `tokenizer_sources.py` names is converted
    tokenizer_config.json     special tokens; in older models also the chat template
    special_tokens_map.json   special tokens, in older models
    chat_template.jinja       the chat template; it wins over the other two
    chat_template.json        the same, of multimodal models; the one in tokenizer_config.json wins over it
    generation_config.json    the tokens that end an answer; config.json may name some too

A model may have several templates: `default`, and `tool_use` for chats in which tools are offered
(`additional_chat_templates/tool_use.jinja`, or by name in a list).
"""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tokenizers import Tokenizer

from potluck.errors import BrokenModelError
from potluck.files import without_mark
from potluck.model.checkpoint.git_pointer import refuse_git_pointer
from potluck.model.gguf.tokenizer import make_tokenizer
from potluck.model.text.tokenizer_conversion import Converted, convert
from potluck.model.text.tokenizer_sources import TOKENIZER, find_tokenizer, no_tokenizer
from potluck.reasons import reason

DEFAULT, TOOL_USE = "default", "tool_use"

_MAX_FILE = 256 << 20  # bytes; the largest tokenizer.json of a published model has 35 MB
_CONFIG = "tokenizer_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFolder:
    """What the files say.

    Attributes:
        tokenizer: turns text into token ids.
        special_tokens: `bos_token` and the like, each with its text.
        templates: sources of the chat templates by their names; empty: the model has none.
        stop_ids: the tokens that any of the files calls the end of an answer.
    """

    tokenizer: Tokenizer
    special_tokens: Mapping[str, str]
    templates: Mapping[str, str]
    stop_ids: frozenset[int]


def read_folder(folder: Path) -> TokenizerFolder:
    """Read a model's folder.

    Raises:
        BrokenModelError: a file is missing or unreadable.
    """
    config = read_json(folder, _CONFIG)
    loaded = _load_tokenizer(folder, config)
    tokenizer, named = loaded.tokenizer, loaded.special_tokens
    special = _special_tokens(named, read_json(folder, "special_tokens_map.json"), config)
    return TokenizerFolder(
        tokenizer=tokenizer,
        special_tokens=special,
        templates=_templates(folder, config),
        stop_ids=_stop_ids(folder, tokenizer, special),
    )


@contextmanager
def broken_tokenizer(what: str, file: str = TOKENIZER) -> Generator[None]:
    """Raise `BrokenModelError` for whatever `tokenizers` raises."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, BrokenModelError):
            raise
        # The library has no error classes of its own, and its `PanicException` is no `Exception`.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise BrokenModelError(
            f"The model's {file} {what}. Download this file again.", file=file
        ) from error


def utf8(text: str) -> str:
    """Replace lone surrogates, which JSON can carry and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _load_tokenizer(folder: Path, config: Mapping[str, object]) -> Converted:
    with broken_tokenizer("cannot be built"):
        make_tokenizer(folder)
    if (path := find_tokenizer(folder)) is None:
        raise no_tokenizer(folder)
    if path.name != TOKENIZER:
        with broken_tokenizer("cannot be converted", path.name):
            return convert(path, _read_bytes(path), config, read_json(folder, "added_tokens.json"))
    text = _read_text(path)
    with broken_tokenizer("cannot be read"):
        return Converted(tokenizer=Tokenizer.from_str(text), special_tokens={})


def _read_bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MAX_FILE:
            raise BrokenModelError(f"The model's {path.name} is too large.", file=path.name)
        data = path.read_bytes()
        refuse_git_pointer(path, data)
        return without_mark(data)
    except OSError as error:
        raise BrokenModelError(
            f"The model's {path.name} cannot be read: {reason(error)}.", file=path.name
        ) from error


def _read_text(path: Path) -> str:
    """The text in a file; some editors begin it with a byte-order mark."""
    try:
        return _read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise BrokenModelError(
            f"The model's {path.name} cannot be read: {reason(error)}.", file=path.name
        ) from error


def read_json(folder: Path, name: str) -> Mapping[str, object]:
    """The JSON object in the file; an empty one if there is no such file."""
    path = folder / name
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise BrokenModelError(
            f"The model's {name} is damaged. Download this file again.", file=name
        ) from error
    if not isinstance(value, dict):
        raise BrokenModelError(f"The model's {name} is not a JSON object.", file=name)
    return cast("dict[str, object]", value)


def _special_tokens(*configs: Mapping[str, object]) -> dict[str, str]:
    """`bos_token` and the like: each value is text, or an object with the text as its `content`."""
    tokens: dict[str, str] = {}
    for config in configs:
        for name, value in config.items():
            match value:
                case str(text) | {"content": str(text)} if name.endswith("_token"):
                    tokens[name] = utf8(text)
                case _:
                    pass
    return tokens


def _templates(folder: Path, config: Mapping[str, object]) -> dict[str, str]:
    """The sources of the chat templates by their names."""
    paths = {
        DEFAULT: folder / "chat_template.jinja",
        TOOL_USE: folder / "additional_chat_templates" / f"{TOOL_USE}.jinja",
    }
    found = {name: _read_text(path) for name, path in paths.items() if path.is_file()}
    if DEFAULT in found:
        return found
    legacy = "chat_template.json"
    return _named(config, _CONFIG) or _named(read_json(folder, legacy), legacy)


def _named(config: Mapping[str, object], file: str) -> dict[str, str]:
    """The field `chat_template`: a text, or a list of texts with names."""
    found = config.get("chat_template")
    if found is None:
        return {}
    if isinstance(found, str):
        return {DEFAULT: found}
    named: dict[str, str] = {}
    for entry in cast("list[object]", found) if isinstance(found, list) else ():
        match entry:
            case {"name": str(name), "template": str(source)}:
                named[name] = source
            case _:
                pass
    if named:
        return {DEFAULT: next(iter(named.values())), **named}
    raise BrokenModelError(
        f"The model's {file} has a chat_template that is no text and no list of named ones."
        " Take the model from another repository, or remove the field to chat without a template.",
        file=file,
    )


def _stop_ids(folder: Path, tokenizer: Tokenizer, special: Mapping[str, str]) -> frozenset[int]:
    """The tokens that any of the files calls the end of an answer; files do not always agree."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = read_json(folder, name).get("eos_token_id")
        candidates = cast("list[object]", value) if isinstance(value, list) else [value]
        found |= {i for i in candidates if isinstance(i, int) and not isinstance(i, bool)}
    named = tokenizer.token_to_id(special.get("eos_token", ""))
    if named is not None:
        found.add(named)
    return frozenset(i for i in found if i >= 0)
