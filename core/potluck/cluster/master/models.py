"""The model that a request names: read from its folder, or made with random weights."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import potluck
from potluck.api.values.schema import PlanRequest
from potluck.errors import UsageError
from potluck.model.shapes.table import SHAPES
from potluck.store.gguf_files import quantisations
from potluck.store.registry import LocalModel, open_model, random_model
from potluck.tasks import in_thread

ReadModel: TypeAlias = Callable[[Path, Callable[[int, int], None]], Awaitable[LocalModel]]
"""Reads a model's folder, and calls the function with how many bytes are done, and the total."""


class Models:
    """Opens the models that are asked for.

    Args:
        resolve: finds the folder of a request's `model`; None is the default model. It may block.
        read: reads the folder.
        shapes: configurations that can be loaded with random weights, by name.
    """

    def __init__(
        self,
        *,
        resolve: Callable[[str | None], Path],
        read: ReadModel,
        shapes: Mapping[str, Mapping[str, object]] = SHAPES,
    ) -> None:
        self._resolve = resolve
        self._read = read
        self._shapes = shapes

    async def find(self, request: PlanRequest) -> list[Path]:
        """Where the model that a request names can be opened; empty: it has no files.

        Several are its quantisations in one folder, the largest first.

        Raises:
            UsageError: there is no such model.
        """

        def look() -> list[Path]:
            path = self._resolve(request.model)
            return quantisations(path) or [path]

        return [] if request.shape is not None else await asyncio.to_thread(look)

    async def open(
        self,
        request: PlanRequest,
        report: Callable[[str, float], None] = lambda name, done: None,
        path: Path | None = None,
    ) -> LocalModel:
        """Open the model of a request.

        Args:
            request: names the model or the shape.
            path: one of those that `find` returned; None: the only one.
            report: called with the name of the model's folder, and how much of it is read, from 0
                to 1.

        Raises:
            ModelError: the model cannot be read.
            UsageError: there is no such model or shape.
        """
        if request.shape is not None:
            return self._random(request.shape)
        folder = path or (await self.find(request))[0]
        report(folder.name, 0.0)
        return await self._read(
            folder, lambda done, total: report(folder.name, done / max(total, 1))
        )

    def _random(self, shape: str) -> LocalModel:
        if (config := self._shapes.get(shape)) is None:
            raise UsageError(
                f"There is no shape called {shape}. There are: {', '.join(self._shapes)}."
            )
        return random_model(shape, config)


def reading(digests: Path) -> ReadModel:
    """Read models in a thread, and keep the digests of their tensors in the folder `digests`."""

    async def read(folder: Path, progress: Callable[[int, int], None]) -> LocalModel:
        return await in_thread(
            lambda report: open_model(folder, cache_dir=digests, progress=report), progress
        )

    return read


def guide_folder() -> Path:
    """Folder of the model that comes with Potluck: in the package, or in the checkout."""
    package = Path(potluck.__file__).parent
    installed = package / "_assets" / "guide"
    return installed if installed.is_dir() else package.parent.parent / "assets" / "guide"
