"""The progress of a Hub download as two numbers; `huggingface_hub` reports only to tqdm bars.

`huggingface_hub` gets bars that draw nothing. Only bars that count bytes of files are read. Bars of
network bytes are ignored: they end early if data is compressed or already there.
"""

from collections.abc import Callable
from threading import Lock
from typing import Any

from tqdm.auto import tqdm  # huggingface_hub requires this class and installs tqdm

NETWORK = "Downloading bytes"  # the description of the bar of network bytes


def silent_bar(progress: Callable[[int, int], None] | None) -> Any:
    """Make a class for `tqdm_class` whose bars call `progress` with (bytes done, bytes in all)."""
    lock = Lock()  # several threads fetch files

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
