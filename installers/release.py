#!/usr/bin/env python3
"""Make a release: `python3 installers/release.py 0.2.0`.

Checks that the version follows the last one, that nothing is uncommitted, that CHANGELOG.md says what is new, that
the locks of the engine have PyTorch for all systems that packages are published for, and that packages name somebody who
can be written to.
Then it writes the version, dates the changelog, runs all checks, commits and tags. What fails leaves everything as it
was. The tag is pushed only after a yes; from it, .github/workflows/release.yml builds and publishes.

    --dry-run       only check, and say what would be done
    --checked       the checks have passed on this very commit: do not run them again

Uses the standard library only.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from native.project import maintainer
from terminal import say

ROOT = Path(__file__).resolve().parent.parent
VERSION_FILE = "core/potluck/__init__.py"
CHANGELOG = "CHANGELOG.md"
LOCKS = "assets/engine"
_LINUX = {"Linux x86-64": r"linux_.*x86_64\.whl$", "Linux arm64": r"linux_.*aarch64\.whl$"}
_WINDOWS = {"Windows x86-64": r"-win_amd64\.whl$"}
ENGINES = {
    "cpu": _LINUX | _WINDOWS,
    "cuda": _LINUX | _WINDOWS,
    "metal": {"macOS arm64": r"-macosx_.*arm64\.whl$"},
}
"""The builds of PyTorch, and the systems whose packages fetch them: how names of wheels end for them."""

_UNRELEASED = "## [Unreleased]"
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_WRITTEN = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


class ReleaseError(Exception):
    """There can be no release. The message says why, and what to do."""


def git(root: Path, *words: str) -> str:
    """What git prints.

    Raises:
        ReleaseError: git failed.
    """
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(f"git {words[0]} failed: {done.stderr.strip()}")
    return done.stdout.strip("\n")


def numbers(version: str) -> tuple[int, ...]:
    """The three numbers of a version.

    Raises:
        ReleaseError: it is not written so.
    """
    found = _VERSION.fullmatch(version)
    if found is None:
        raise ReleaseError(f"{version!r} is no version: write three numbers, as in 0.2.0.")
    return tuple(map(int, found.groups()))


def check(root: Path, version: str) -> None:
    """Check all that is known before anything is run.

    Raises:
        ReleaseError: there can be no such release.
    """
    wanted = numbers(version)
    tags = [tag for tag in git(root, "tag", "--list", "v*").split() if _VERSION.fullmatch(tag[1:])]
    last = max((numbers(tag[1:]) for tag in tags), default=None)
    if last is not None and wanted <= last:
        raise ReleaseError(f"{version} does not come after {'.'.join(map(str, last))}.")
    written = _WRITTEN.search((root / VERSION_FILE).read_text(encoding="utf-8"))
    if written is None:
        raise ReleaseError(f"{VERSION_FILE} has no __version__.")
    if wanted < numbers(written[1]):
        raise ReleaseError(f"{version} comes before {written[1]}, which {VERSION_FILE} has.")
    if changes := git(root, "status", "--porcelain"):
        raise ReleaseError(f"Commit these first, or take them away:\n{changes}")
    if not news(root):
        raise ReleaseError(f"{CHANGELOG} says nothing under {_UNRELEASED}: what is new?")
    if missing := uncovered(root):
        raise ReleaseError(
            f"The locks of the engine lack PyTorch: {', '.join(missing)}. Make them: {LOCKS}/README.md."
        )
    if (who := maintainer(root)).endswith(".invalid>"):  # RFC 2606: it leads nowhere
        raise ReleaseError(
            f"Packages would name {who}, to whom nobody can write. Put the project's address into pyproject.toml (maintainers)."
        )


def uncovered(root: Path) -> list[str]:
    """The builds of PyTorch and systems that packages are published for, and whose lock has no torch."""
    missing: list[str] = []
    for variant, systems in ENGINES.items():
        path = root / LOCKS / f"pylock.{variant}.toml"
        packages = tomllib.loads(path.read_text("utf-8"))["packages"] if path.is_file() else []
        names = [w["name"] for p in packages if p["name"] == "torch" for w in p.get("wheels", ())]
        missing += [
            f"{variant} for {system}"
            for system, tag in systems.items()
            if not any(re.search(tag, name) for name in names)
        ]
    return missing


def news(root: Path, heading: str = _UNRELEASED) -> str:
    """What the changelog says under a heading."""
    text = (root / CHANGELOG).read_text(encoding="utf-8")
    _, found, rest = text.partition(f"{heading}")
    body = re.split(r"^## ", rest.partition("\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    said = re.sub(r"^#+ .*$", "", body, flags=re.MULTILINE).strip()
    return body.strip() if found and said else ""


def write(root: Path, version: str, day: datetime.date) -> None:
    """Write the version, and give the changelog's news its heading."""
    file, changelog = root / VERSION_FILE, root / CHANGELOG
    text = file.read_text(encoding="utf-8")
    file.write_text(_WRITTEN.sub(f'__version__ = "{version}"', text), encoding="utf-8")
    text = changelog.read_text(encoding="utf-8")
    heading = f"{_UNRELEASED}\n\n## [{version}] - {day.isoformat()}"
    changelog.write_text(text.replace(_UNRELEASED, heading, 1), encoding="utf-8")


def run_checks(root: Path) -> None:
    """Run the workflows' lint, the lint and the suite.

    Raises:
        ReleaseError: one failed; it has said why.
    """
    for step in ("workflows", "lint", "tests"):
        say(f"\n{step} …")
        if subprocess.run([sys.executable, str(root / "installers" / "ci.py"), step]).returncode:
            raise ReleaseError(f"The step {step} failed: see above. Nothing was released.")


def release(root: Path, version: str, *, is_checked: bool) -> str:
    """Write, check, commit and tag. Return the tag.

    Raises:
        ReleaseError: a check failed; the files are as they were.
    """
    tag = f"v{version}"
    write(root, version, datetime.datetime.now(datetime.UTC).date())
    try:
        if not is_checked:
            run_checks(root)
        git(root, "commit", "--quiet", "--message", f"release: {version}", VERSION_FILE, CHANGELOG)
    except BaseException:
        git(root, "checkout", "--quiet", "HEAD", "--", VERSION_FILE, CHANGELOG)
        raise
    git(root, "tag", "--annotate", "--message", f"Potluck {version}", tag)
    return tag


def push(root: Path, tag: str) -> None:
    """Push the branch and the tag, if the person at the terminal says yes."""
    branch = git(root, "rev-parse", "--abbrev-ref", "HEAD")
    command = f"git push --atomic origin {branch} {tag}"
    is_asked = sys.stdin.isatty()
    if is_asked and input(f"\nPublish it: {command}? [y/N] ").strip().lower() in ("y", "yes"):
        git(root, *command.split()[1:])
        say(f"{tag} is pushed. The workflow “release” builds and publishes it.")
    else:
        say(f"\n{tag} is here, and nothing was pushed. To publish it: {command}")


def main(words: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Make the release. Return 0; 1 after a sentence that says why there is none."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version", help="three numbers")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--checked", action="store_true")
    options = parser.parse_args(words)
    try:
        check(root, options.version)
        if options.dry_run:
            say(f"{options.version} can be made. Its news:\n\n{news(root)}")
            return 0
        push(root, release(root, options.version, is_checked=options.checked))
    except ReleaseError as error:
        say(f"\n{error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
