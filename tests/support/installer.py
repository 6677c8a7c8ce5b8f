"""Import the scripts of `installers/`, which are no package."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

INSTALLERS = Path(__file__).parents[2] / "installers"


def load(name: str, folder: Path = INSTALLERS) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # run.py imports the other scripts by name, and dataclasses look up their module here.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


machine = load("machine")
terminal = load("terminal")
lock = load("lock")
pytorch = load("pytorch")
