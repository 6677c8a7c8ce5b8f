"""What faults do to answers: `python tests/faults`. Linux, root.

Starts a home of four computers (network namespaces joined by a switch, real nodes), asks it
questions, and lets something go wrong. Every answer is compared with the undisturbed one.

    python tests/faults --runs 20                   twenty runs, drawn from the seeds 0 to 19
    python tests/faults --seed 17                   the run of this seed again
    python tests/faults --kind kill-stage --runs 5  runs with this kind of fault
    python tests/faults --runs 500 --json           a line of JSON for each run; the table on stderr
    python tests/faults --soak 30                   sessions and faults for 30 minutes, and the memory

A run is `equal` if all answers are what they would have been undisturbed, `error` if some ended with
a clear error, and else `lost`: another token, a bare end, silence for more than `--silence` seconds,
or no prompt answered afterwards. What is left over (processes, descriptors, parts of transfers) is
named. `next token` is the longest wait for a token after the fault. The exit status is 1 if a run
was lost or left something over.
"""

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "support")]


def main(words: Sequence[str] | None = None) -> int:
    """Run what the command line asks for.

    All processes run a copy of the code. Else one that is started again during the runs would have other
    code than its neighbours if somebody changes the checkout meanwhile.
    """
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        print("This makes network namespaces, so it runs on Linux as root only.", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends what was started, as Ctrl-C does
    with TemporaryDirectory(prefix="potluck-core-") as core:
        shutil.copytree(TESTS.parent / "core" / "potluck", Path(core, "potluck"))
        sys.path.insert(0, core)
        return _run(_parser().parse_args(words))


def _run(options: argparse.Namespace) -> int:
    from faults.batch import run, soak  # after `main` has said where the packages are

    folder = Path(mkdtemp(prefix="potluck-faults-"))
    try:
        return soak(folder, options) if options.soak else run(folder, options)
    except KeyboardInterrupt:
        return 130
    finally:
        if options.keep:
            print(f"The computers' folders are in {folder}.", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    from faults.scenario import KINDS

    parser = argparse.ArgumentParser(
        prog="python tests/faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first run (0)")
    parser.add_argument("--runs", type=int, default=1, help="how many, with a seed each (1)")
    parser.add_argument("--kind", choices=KINDS, help="of every run, in place of the one drawn")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="sessions and faults so long")
    parser.add_argument("--silence", type=float, default=12.0, help="seconds (12)")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each run")
    parser.add_argument("--keep", action="store_true", help="keep the folders of the computers")
    return parser


if __name__ == "__main__":
    sys.exit(main())
