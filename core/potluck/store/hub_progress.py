"""The progress of a Hub download as two numbers. `huggingface_hub` reports it to tqdm bars alone.

It is given bars that draw nothing, and of those the ones that count bytes of files are read. Bars of
network bytes are passed over: what is compressed or there already would make them end early.
"""

from collections.abc import Callable
from threading import Lock
from typing import Any

from tqdm.auto import tqdm  # what huggingface_hub asks for, and brings along

NETWORK = "Downloading bytes"  # how the bar of network bytes calls itself


def silent_bar(progress: Callable[[int, int], None] | None) -> Any:
    """A class of bars for `tqdm_class`, which call `progress` with (bytes done, bytes in all)."""
    lock = Lock()  # files are fetched by several threads

    class SilentBar(tqdm):  # pyright: ignore[reportMissingTypeArgument, reportUntypedBaseClass]
        def __init__(self, *args: Any, **options: Any) -> None:
            self._counts = options.get("unit") == "B" and options.get("desc") != NETWORK
            self._done = int(options.get("initial") or 0)
            options.pop("name", None)
            super().__init__(*args, **(options | {"disable": True}))  # pyright: ignore[reportUnknownMemberType]

        def update(self, n: float | None = 1) -> None:
            if not self._counts or progress is None:
                return
            with lock:
                self._done += int(n or 0)
                progress(self._done, max(self._done, int(self.total or 0)))

    return SilentBar
