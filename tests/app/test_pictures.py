"""The pictures of the README can be made again: every window, light and dark."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PySide6.QtGui import QImage

pytestmark = [pytest.mark.qt, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
WINDOWS = (
    "first",
    "chat",
    "chat-empty",
    "chat-edit",
    "chat-full",
    "chat-options",
    "chat-search",
    "chat-search-empty",
    "cluster",
    "cluster-streaming",
    "models",
    "models-discover",
    "models-download",
    "settings",
    "worker",
)


def test_every_window_is_drawn_in_both_themes(tmp_path: Path) -> None:
    script = ROOT / "installers" / "screenshots.py"
    environ = {**os.environ, "QT_QPA_PLATFORM": "offscreen"}

    subprocess.run([sys.executable, script, tmp_path], env=environ, timeout=100, check=True)

    for name in WINDOWS:
        light, dark = (QImage(str(tmp_path / f"{name}-{t}.png")) for t in ("light", "dark"))
        assert light.size() == dark.size()
        assert light.width() >= 380
        assert light.pixelColor(2, 2).lightness() > 200 > 60 > dark.pixelColor(2, 2).lightness()
        assert (
            len(
                {
                    light.pixel(x, y)
                    for x in range(0, light.width(), 4)
                    for y in range(0, light.height(), 4)
                }
            )
            > 20
        )
