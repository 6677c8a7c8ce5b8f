"""A Python with what the lock of the packages names, for scripts that need more than the standard library."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = Path(__file__).resolve().parent / "locks" / "app.txt"


@contextmanager
def locked_python(lock: Path = LOCK) -> Iterator[Path]:
    """Make one, each file verified by its hash; it is deleted afterwards.

    Raises:
        subprocess.CalledProcessError: it cannot be made; pip has said why.
    """
    with tempfile.TemporaryDirectory(prefix="potluck-locked-") as name:
        place = Path(name)
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
        words = ["-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps"]
        words += ["--only-binary", ":all:", "--requirement", str(lock)]
        subprocess.run([python, *words], check=True)
        yield python
