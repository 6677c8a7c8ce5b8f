"""The words of the model that answers: its tokenizer, its template, and the sampling that it recommends."""

import asyncio
from pathlib import Path
from typing import NamedTuple

from potluck.cluster.text.client import ModelText, open_text
from potluck.errors import UsageError
from potluck.model.defaults import GenerationDefaults, load_defaults
from potluck.model.text.pooling import load_pooling
from potluck.store.registry import LocalModel


class ModelWords(NamedTuple):
    """The words of one model."""

    text: ModelText
    defaults: GenerationDefaults
    pooling: str  # see `potluck.model.text.pooling`


class Words:
    """Those of one model at a time, read once. `log` is of the process that runs its tokenizer."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._reading = asyncio.Lock()
        self._read: ModelWords | None = None

    async def of(self, model: LocalModel) -> ModelWords:
        """The words of a model.

        Raises:
            UsageError: it has none.
            BrokenModelError: its tokenizer or template cannot be used.
        """
        if (folder := model.words) is None:
            raise UsageError(
                f"{model.name} is a shape with random weights: it has no words, and is only there"
                " to be measured. Load a model to talk with."
            )
        async with self._reading:
            if self._read is None or self._read.text.folder != folder:
                await self.close()
                self._read = ModelWords(
                    await open_text(folder, self._log),
                    await asyncio.to_thread(load_defaults, folder),
                    await asyncio.to_thread(load_pooling, folder),
                )
            return self._read

    async def close(self) -> None:
        """End the process that runs the tokenizer."""
        read, self._read = self._read, None
        if read is not None:
            await read.text.close()
