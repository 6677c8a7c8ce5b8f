"""Which of several quantisations of one model to load: the best one that the computers can hold."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from potluck.errors import ModelError, format_bytes
from potluck.model.schemes import Scheme
from potluck.store.gguf_files import gguf_name
from potluck.store.registry import LocalModel, random_model


@dataclass(frozen=True, slots=True)
class Choice:
    """The file to load, and a sentence for people: which one it is, and why; empty if there is no other."""

    file: Path | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that a model takes with its cache, and how many of them the computers lack."""

    needed: int
    lacking: int


async def choose_quantisation(
    files: Sequence[Path],
    *,
    scheme_of: Callable[[LocalModel], Scheme],
    need: Callable[[Scheme, LocalModel], Awaitable[Need]],
) -> Choice:
    """Choose the best quality that fits; if none does, the smallest, so that planning says what is missing.

    Args:
        files: of the model's quantisations, the largest first.
        scheme_of: the scheme nearest to what a model is stored in.
        need: what a model takes in a scheme.

    Raises:
        ModelError: none of the files can be run; it is that of the smallest.
    """
    reasons: list[str] = []
    readable: Path | None = None
    error: ModelError | None = None
    for file in files:
        try:
            model = await asyncio.to_thread(_described, file)
        except ModelError as why:
            error = why
            reasons.append(f"{gguf_name(file)} cannot be read")
            continue
        readable = file
        found = await need(scheme_of(model), model)
        if not found.lacking:
            return Choice(file, _note(files, file, "the best quality that fits", reasons))
        reasons.append(
            f"{gguf_name(file)} needs {format_bytes(found.needed)}, and"
            f" {format_bytes(found.needed - found.lacking)} are there"
        )
    if readable is None:
        assert error is not None
        raise error
    reasons.pop()  # planning says what the smallest one lacks
    return Choice(readable, _note(files, readable, "the smallest, since none fits", reasons))


def _described(file: Path) -> LocalModel:
    """The model in a file by its header alone: nothing is digested."""
    # Imported here: importing `gguf` takes a tenth of a second, and only GGUF models need it.
    from potluck.store.gguf_model import read_gguf

    return random_model(gguf_name(file), read_gguf(file))


def _note(files: Sequence[Path], file: Path, why: str, reasons: Sequence[str]) -> str:
    others = f" {'; '.join(reasons)}." if reasons else ""
    return (
        f"Of the model's {len(files)} quantisations in {file.parent.name}, {gguf_name(file)} is used:"
        f" {why}.{others} To use another one, give the path of its file."
    )
