"""The icon of the program in the sizes and formats that systems want, drawn from its SVG.

The tree's own Python draws, since it has Qt and Pillow, and the one that builds may have neither.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from native.project import ROOT, BuildError

SIZES = (16, 32, 48, 64, 128, 256, 512)
_DRAW = """
import sys
from pathlib import Path
from PIL import Image
from PySide6.QtCore import QRectF
from PySide6.QtGui import QImage, QPainter
from PySide6.QtSvg import QSvgRenderer

svg, folder, *sizes = sys.argv[1:]
folder = Path(folder)
renderer = QSvgRenderer(svg)
for size in map(int, sizes):
    image = QImage(size, size, QImage.Format.Format_ARGB32)
    image.fill(0)
    painter = QPainter(image)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    renderer.render(painter, QRectF(0, 0, size, size))
    painter.end()
    if not image.save(str(folder / f"potluck-{size}.png")):
        sys.exit("an icon could not be saved")
drawn = [Image.open(folder / f"potluck-{size}.png") for size in sizes]
most = [image for image in drawn if image.width <= 256]  # an .ico has no larger ones
most[-1].save(folder / "potluck.ico", append_images=most[:-1], sizes=[i.size for i in most])
drawn[-1].save(folder / "potluck.icns", append_images=drawn[:-1])
"""


def draw(python: Path, folder: Path) -> None:
    """Draw `potluck-SIZE.png`, `potluck.ico` and `potluck.icns` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    svg = ROOT / "assets" / "icons" / "potluck.svg"
    words = [python, "-I", "-B", "-c", _DRAW, str(svg), str(folder), *map(str, SIZES)]
    environ = {**os.environ, "QT_QPA_PLATFORM": "offscreen"}
    done = subprocess.run(words, capture_output=True, text=True, env=environ)
    if done.returncode:
        raise BuildError(f"The icons could not be drawn:\n{done.stderr.strip()}")
