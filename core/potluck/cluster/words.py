"""The words of the model that answers: its tokenizer, its template, and the sampling that it recommends."""

import asyncio
from pathlib import Path

from potluck.cluster.text.client import ModelText, open_text
from potluck.errors import UsageError
from potluck.model.defaults import GenerationDefaults, load_defaults
from potluck.store.registry import LocalModel


class Words:
    """Those of one model at a time, read once. `log` is of the process that runs its tokenizer."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._reading = asyncio.Lock()
        self._read: tuple[ModelText, GenerationDefaults] | None = None

    async def of(self, model: LocalModel) -> tuple[ModelText, GenerationDefaults]:
        """The words of a model, and the sampling that it recommends.

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
            if self._read is None or self._read[0].folder != folder:
                await self.close()
                text = await open_text(folder, self._log)
                self._read = (text, await asyncio.to_thread(load_defaults, folder))
            return self._read

    async def close(self) -> None:
        """End the process that runs the tokenizer."""
        read, self._read = self._read, None
        if read is not None:
            await read[0].close()
