"""Draw every screen and state with an invented home: light and dark, 100 % and 150 %, narrow to wide.

Usage: `python installers/screenshots FOLDER`. Needs no display and no node; nothing is measured.
The files are called SCREEN-STATE-THEME-SCALE-WIDTH.png; `FOLDER/sheet-*.png` show all of one kind
at a glance. Text that is cut is named at the end. `python installers/screenshots --list` says of each
scene what it shows. `--screen 1366x768` takes them on a screen of so many pixels, in which windows and
dialogs have to fit. `python installers/screenshots FOLDER --film` makes the animation of the first minute,
FOLDER/first-minute.png; `python installers/screenshots --readme` makes it and the other pictures of the README
anew, in assets/screenshots; `python installers/screenshots --guide` makes those of the user's guides anew, English in assets/guide-pictures,
German in assets/guide-pictures-de.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCREEN = (3000, 1700)  # pixels: room for the widest window at 150 %


def main() -> None:
    """Take the pictures: each scale in a process of its own, since Qt reads it only at its start."""
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.list:
        _print_scenes()
        return
    if arguments.guide:
        _take_guide(arguments.folder)
        return
    if arguments.readme:
        _take_readme(arguments.folder)
        return
    if arguments.folder is None:
        parser.error("name the folder for the pictures")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    from screenshots.film import FRAMES, write_film

    if arguments.film:
        scenes = [scene for scene, _ in FRAMES]
        words = ["--scales", "--themes", "light", "--widths", "1180", "--only"]
        _run_at(100, SCREEN, [str(arguments.folder), *words, *scenes])
        print(f"The animation is {write_film(arguments.folder, 'light-100-1180')}.")
        return
    if arguments.scales:
        for scale in arguments.scales:
            _run_at(scale, arguments.screen, [*sys.argv[1:], "--scales"])
        print(f"The pictures are in {arguments.folder}. Look at sheet-*.png first.")
        return
    from PySide6.QtWidgets import QApplication
    from screenshots.index import write_sheets
    from screenshots.scenes import SCENES
    from screenshots.taking import take

    names = arguments.only or list(SCENES)
    unknown = sorted(set(names) - set(SCENES))
    if unknown:
        sys.exit(f"There is no scene {', '.join(unknown)}. These are there: {', '.join(SCENES)}.")
    qapp = QApplication(sys.argv[:1])
    for fault in take(
        qapp,
        arguments.folder,
        names,
        arguments.themes,
        arguments.widths,
        arguments.language,
        arguments.text_size,
    ):
        print(fault)
    write_sheets(arguments.folder, arguments.widths)


def _take_guide(folder: Path | None) -> None:
    """Take the pictures of the user's guides, in a folder for each language; None: in the place of those that are there."""
    from screenshots import guide

    for language, place in guide.FOLDERS.items():
        target = folder / language if folder is not None else place
        words = ["--scales", "--themes", "light", "--widths", str(guide.WIDTH)]
        with tempfile.TemporaryDirectory() as taken:
            scenes = ["--language", language, "--only", *guide.SCENES]
            _run_at(100, SCREEN, [taken, *words, *scenes])
            nbytes = guide.write_pictures(Path(taken), target, "light-100")
        print(f"{len(guide.SCENES)} pictures are in {target}: {nbytes / 1e6:.2f} MB.")


def _take_readme(folder: Path | None) -> None:
    """Take the pictures of the README in a folder; None: in the place of those that are there."""
    from screenshots import readme

    target = folder if folder is not None else readme.FOLDER
    with tempfile.TemporaryDirectory() as taken:
        words = ["--scales", "--widths", str(readme.WIDTH), "--only", *readme.ALL]
        _run_at(100, SCREEN, [taken, *words])
        nbytes = readme.write_pictures(Path(taken), target)
    print(f"The pictures of the README are in {target}: {nbytes / 1e6:.2f} MB.")


def _print_scenes() -> None:
    """Print the name of each scene, and what it shows."""
    from screenshots.scenes import SCENES

    for name, scene in SCENES.items():
        print(f"{name}: {scene.says}")


def _run_at(scale: int, screen: tuple[int, int], words: list[str]) -> None:
    """Run this program again with Qt at this scale, in percent, on a screen of so many pixels."""
    width, height = screen
    dots = {"logicalDpi": 96, "logicalBaseDpi": 96, "dpr": 1}
    wanted = {"name": "screen", "x": 0, "y": 0, "width": width, "height": height, **dots}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "screen.json"
        config.write_text(json.dumps({"screens": [wanted]}))
        platform = f"offscreen:configfile={config}"
        environ = {**os.environ, "QT_QPA_PLATFORM": platform, "QT_SCALE_FACTOR": str(scale / 100)}
        status = subprocess.run([sys.executable, str(HERE), *words], env=environ, check=False)
    if status.returncode:
        sys.exit(status.returncode)


def _size(text: str) -> tuple[int, int]:
    """Read a size, such as `1366x768`."""
    width, height = map(int, text.split("x"))
    return width, height


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="screenshots", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("folder", type=Path, nargs="?", help="where the pictures go")
    parser.add_argument("--list", action="store_true", help="print the scenes; take none")
    parser.add_argument("--only", nargs="+", metavar="SCENE", help="these scenes alone")
    parser.add_argument("--film", action="store_true", help="the animation alone")
    parser.add_argument("--guide", action="store_true", help="those of the user's guides alone")
    parser.add_argument("--readme", action="store_true", help="those of the README alone")
    parser.add_argument("--themes", nargs="+", choices=("light", "dark"), default=("light", "dark"))
    parser.add_argument(
        "--widths", nargs="+", type=int, default=(480, 768, 1180, 1920), help="in logical pixels"
    )
    parser.add_argument(
        "--screen", type=_size, default=SCREEN, metavar="WIDTHxHEIGHT", help="in pixels"
    )
    parser.add_argument("--language", default="en", metavar="CODE", help="such as de")
    parser.add_argument("--text-size", type=int, default=14, help="of running text, in pixels")
    parser.add_argument(
        "--scales", nargs="*", type=int, default=(100, 150), help="in percent; none: that of Qt now"
    )
    return parser


if __name__ == "__main__":
    root = HERE.parents[1]
    sys.path[:0] = [str(root / "core"), str(root / "app"), str(HERE.parent)]
    main()
