"""Runs the tests and the guide on the processors that the command line asks for."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from arm64.comparing import Answers, compare
from arm64.root import CHECKOUT, PROCESSORS, Root, SetupError, with_sources

HERE = Path(__file__).parent


def main(words: Sequence[str] | None = None) -> int:
    """Make the folder, and run what the command line asks for. Returns the exit status."""
    options = _parser().parse_args(words)
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        print("debootstrap makes a Debian, so this runs on Linux as root only.", file=sys.stderr)
        return 2
    root = Root(options.folder.absolute())
    try:
        root.make()
    except SetupError as error:
        print(error, file=sys.stderr)
        return 2
    is_right = True
    for processor in options.processor:
        if options.only != "guide":
            is_right &= _test_kernels(root, processor, options.tests)
        if options.only != "kernels":
            is_right &= _compare_guide(root, processor)
    return 0 if is_right else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python tests/arm64", description="Test the kernels on emulated arm64 processors."
    )
    parser.add_argument("folder", type=Path, help="where the arm64 Debian is, or is made")
    parser.add_argument(
        "--processor", choices=PROCESSORS, nargs="+", default=list(PROCESSORS), help="by its path"
    )
    parser.add_argument("--only", choices=("kernels", "guide"), help="one part of it")
    parser.add_argument(
        "--tests",
        nargs="*",
        default=["tests/engine/kernels"],
        help="other files than all of the kernels",
    )
    return parser


def _test_kernels(root: Root, processor: str, tests: Sequence[str]) -> bool:
    """Run the tests of the path that this processor has to take."""
    began = time.monotonic()
    # What every path compiles for was compiled on the host; here it is the code that runs which counts.
    chosen = ("-k", f"{processor} and not every_kernel")
    words = ("-m", "pytest", "-q", "-c", str(HERE / "emulated.ini"), "--rootdir", str(CHECKOUT))
    kernels = str(root.folder / f"kernels-{processor}")
    command = root.python(processor, (*words, *chosen, *tests), POTLUCK_TEST_KERNELS=kernels)
    status = subprocess.run(command, cwd=CHECKOUT).returncode
    print(
        f"{processor}: tests ended with status {status} after {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return status == 0


def _compare_guide(root: Root, processor: str) -> bool:
    """Let the guide answer here and there, and print how the answers differ."""
    script = HERE / "answers.py"
    began = time.monotonic()
    here = _answers(["env", f"PYTHONPATH={with_sources()}", sys.executable, str(script)])
    there = _answers(root.python(processor, [script]))
    if here is None or there is None:
        return False
    is_right, lines = compare(processor, here, there)
    print(
        *lines,
        f"{processor}: the guide took {time.monotonic() - began:.0f} s",
        sep="\n",
        flush=True,
    )
    return is_right


def _answers(command: Sequence[str]) -> Answers | None:
    """What `answers.py` prints; None if it failed, which it has said."""
    done = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        print(f"The guide could not answer (status {done.returncode}).", file=sys.stderr)
        return None
    return json.loads(done.stdout)
