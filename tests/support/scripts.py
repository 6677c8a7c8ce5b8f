"""Import scripts that are in no package, and import one another by their names."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load(name: str, folder: Path) -> ModuleType:
    """Return a script as a module, made anew with each call."""
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where other scripts find it, and its own dataclasses
    spec.loader.exec_module(module)
    return module
