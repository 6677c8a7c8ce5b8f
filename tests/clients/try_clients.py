"""Which programs' libraries work with Potluck: `python tests/clients/try_clients.py [NAME...] [options]`. Not a test.

Asks a running `potluck serve` by the libraries that programs use, each in an environment of its own (they need
different versions of one another), which is made at the first try: Python's from PyPI, JavaScript's from npm where
`node` is there. A random model is enough, since schemas decide what it may say (`tests/support/byte_model.py`, with a
larger `max_position_embeddings`):

    potluck serve --model FOLDER --context 30000 --port 8000

Tasks: `chat` an answer as a whole; `stream` in pieces; `tools` a call of a tool, and its result; `structure` an answer
that a schema describes; `async` several at once; `errors` an unknown model and a prompt that is too long, as the
library tells them apart.
"""

import argparse
import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

from python_clients import CLIENTS

HERE = Path(__file__).parent
TASKS = ("chat", "stream", "tools", "structure", "async", "errors")
MORE = {"litellm": ("mcp",)}  # what a package needs for tools and does not name
NODE_CLIENTS = {
    "npm:openai": ("openai",),
    "npm:@anthropic-ai/sdk": ("@anthropic-ai/sdk",),
    "npm:@ai-sdk/openai-compatible": ("@ai-sdk/openai-compatible", "ai"),
    "npm:ollama": ("ollama",),
}


def run(command: Sequence[str | Path], cwd: Path, seconds: float) -> str:
    """Return the last line that a command prints.

    Raises:
        RuntimeError: it failed, with its last lines.
    """
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=seconds, check=False
    )
    if done.returncode != 0:
        raise RuntimeError((done.stderr or done.stdout)[-500:])
    return done.stdout.strip().rpartition("\n")[2]


def try_python(name: str, folder: Path, url: str) -> str:
    """Return the results of a package of PyPI."""
    place = folder / name.partition("[")[0]
    python = place / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    if not (place / "installed").exists():
        venv.create(place, with_pip=True, clear=True)
        run([python, "-m", "pip", "install", "--quiet", name, *MORE.get(name, ())], place, 1800)
        (place / "installed").touch()
    return run([python, HERE / "python_clients.py", name, url], place, 900)


def try_node(name: str, folder: Path, url: str) -> str:
    """Return the results of a package of npm."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise RuntimeError("node and npm are not installed")
    packages = NODE_CLIENTS[name]
    place = folder / "npm" / packages[0].replace("/", "-")
    if not (place / "node_modules").exists():
        place.mkdir(parents=True, exist_ok=True)
        run([npm, "install", "--prefix", place, *packages], place, 600)
    return run([node, HERE / "node_clients.mjs", packages[0], url], place, 900)


def main() -> None:
    """Try the clients one after the other, and print a table and what went wrong."""
    known: dict[str, Callable[[str, Path, str], str]] = {
        **dict.fromkeys(CLIENTS, try_python),
        **dict.fromkeys(NODE_CLIENTS, try_node),
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(known)}")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument(
        "--folder", type=Path, default=Path("build/clients"), help="where they are installed"
    )
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    wrong: list[str] = []
    print("".join(f"{word:<11}" for word in (f"{'':<28}", *TASKS)).rstrip())
    for name in options.names or known:
        try:
            results: dict[str, str] = json.loads(known[name](name, folder, options.url))
        except Exception as error:  # noqa: BLE001 whatever it is, the next client is tried
            results = {"chat": f"not tried: {error}"}
        shown = ["-" if task not in results else "no" if results[task] else "yes" for task in TASKS]
        print(f"{name:<32}" + "".join(f"{word:<11}" for word in shown).rstrip(), flush=True)
        wrong += [f"{name}, {task}: {text}" for task, text in results.items() if text]
    print(*wrong, sep="\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
