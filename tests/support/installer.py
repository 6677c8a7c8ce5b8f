"""Import the scripts of `installers/`, which are no package."""

from pathlib import Path
from types import ModuleType

import scripts

INSTALLERS = Path(__file__).parents[2] / "installers"


def load(name: str, folder: Path = INSTALLERS) -> ModuleType:
    return scripts.load(name, folder)


machine = load("machine")
terminal = load("terminal")
lock = load("lock")
pytorch = load("pytorch")
