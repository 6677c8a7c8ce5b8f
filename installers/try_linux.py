#!/usr/bin/env python3
"""Try the packages for Linux as users have them: in a Debian without Python and without a compiler.

    sudo python3 installers/try_linux.py --engine FOLDER_OF_WHEELS [--suite trixie] [--packages dist]

`deb`, `tarball` and `appimage` install, use and remove a package. `cluster` makes two computers with a cable between them: the first
fetches its engine from a server that stands for the Internet (the wheels have to be those of the lists), the second has
no Internet and takes it from the first; then both answer together. `update` has a server of releases offer such a home a newer
version, made of the same .tar.xz: both computers are updated, and the first one goes back. Then it offers one that does not come
up, which is left again; the list before that one, which is refused; and the first version again, as makers do who take one back: the
second computer hears of that from the first, and goes back, too.

Each step is printed with what was measured; the first that fails ends it with status 1. A picture of the
window is left in the work folder. Needs root for roots and network namespaces, and debootstrap, Xvfb,
xwininfo and ImageMagick, and for `update` what Potluck needs. The Debian packages of what the .deb recommends come from Debian's mirror.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from native import asked
from native.displays import see
from native.networks import internet, two_networks, until
from native.project import ROOT, BuildError
from native.renumbering import newer_appimage
from native.roots import USER, Root, make, run
from terminal import say

if TYPE_CHECKING:
    from native.trial_releases import TrialReleases

_ABSENT = ("python3", "python", "cc", "gcc", "pip")
_PROMPT = "What is a worker?"
_ANSWER = "A worker is a computer"  # how the guide answers
_WINDOW_S = 60.0
INDEX, RELEASES = 8088, 8077  # ports of what stands for the Internet


def main(words: list[str] | None = None) -> int:
    """Try everything, and return 0; 1 after a sentence that says what failed."""
    options = _parser().parse_args(words)
    try:
        if os.geteuid() != 0:
            raise BuildError("This needs root: it makes roots and network namespaces.")
        trial = Trial(options)
        for step in options.only or ["deb", "tarball", "appimage", "cluster"]:
            say(f"{step}, in a clean Debian {options.suite}:")
            getattr(trial, step)()
    except BuildError as error:
        say(f"\nFAILED: {error}")
        return 1
    say("Everything worked.")
    return 0


class Trial:
    """The steps, in the roots of one release of Debian."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._suite: str = options.suite
        self._packages: Path = options.packages.resolve()
        self._engine: Path | None = options.engine.resolve() if options.engine else None
        self._torch: Path | None = options.torch.resolve() if options.torch else None
        self._work: Path = options.work.resolve()
        self._display: int = options.display

    def deb(self) -> None:
        """The .deb: installed by apt, used by a user, removed."""
        with Root(self._make("deb")) as root:
            self._need_bareness(root)
            package = self._package(".deb")
            self._measured("apt installs the .deb", lambda: self._apt_install(root, package))
            self._need_bareness(root)
            say(f"  installed: {_size(root.folder / 'opt/potluck') / 1e6:.0f} MB")
            self._use(root, "/opt/potluck", "/opt/potluck/bin/potluck-window")
            said = root.run("apt-get", "remove", "-y", "potluck", user=None)
            _expect(
                "Models, chats, settings and keys of each user stay" in said, "apt says what stays"
            )
            root.run("apt-get", "purge", "-y", "potluck", user=None)
            parts = (root.folder / part for part in ("etc", "opt", "usr", "var/lib"))
            left = [path for part in parts for path in part.rglob("*potluck*")]
            _expect(not left, f"nothing is left in the system {left or ''}")

    def tarball(self) -> None:
        """The .tar.xz: installed by a user without rights, used, and removed with what shall not stay."""
        with Root(self._make("tar")) as root:
            self._libraries_of_desktops(root)
            package = self._package(".tar.xz")
            self._measured("a user installs the .tar.xz", lambda: self._unpack(root, package))
            place = f"/home/{USER}/.local/opt/potluck"
            self._use(root, f"{place}/tree", f"{place}/tree/bin/potluck-window")
            root.run(f"{place}/uninstall.sh", "--keep")
            home = root.folder / "home" / USER
            _expect((home / ".config/potluck").exists(), "the settings stay with --keep")
            root.run("sh", "-c", f"cd && {package.name.removesuffix('.tar.xz')}/install.sh")
            root.run(f"{place}/uninstall.sh", "--delete")
            shutil.rmtree(home / package.name.removesuffix(".tar.xz"))
            self._need_nothing(home)

    def appimage(self) -> None:
        """The AppImage: opened by a user without rights and without FUSE, twice, used, and removed."""
        with Root(self._make("appimage")) as root:
            self._need_bareness(root)
            _expect(not (root.folder / "dev/fuse").exists(), "there is no FUSE")
            self._libraries_of_desktops(root)
            package = self._package(".AppImage")
            home, name = root.folder / "home" / USER, f"/home/{USER}/{package.name}"
            shutil.copy(package, home)
            run("chroot", str(root.folder), "chown", f"{USER}:{USER}", name)
            say("the first start, which installs:")
            self._see_window(root, name)
            self._end(root)
            say(f"  installed: {_size(home / '.local/opt') / 1e6:.0f} MB")
            say("later starts:")
            self._see_window(root, name, "--appimage-extract-and-run")
            place = f"/home/{USER}/.local/opt/potluck"
            self._use(root, f"{place}/tree", name)
            self._open_newer(root, package)
            root.run(f"{place}/uninstall.sh", "--delete")
            for file in home.glob("*.AppImage"):
                file.unlink()
            self._need_nothing(home)

    def _open_newer(self, root: Root, package: Path) -> None:
        """A newer AppImage updates what is installed; then the older one opens what is there."""
        newer = f"{asked.version(root)}.post1"
        newer_appimage(package, newer, root.folder / "home" / USER / "newer.AppImage")
        say("a newer one:")
        self._see_window(root, f"/home/{USER}/newer.AppImage")
        _expect(asked.version(root) == newer, f"it is {newer} now")
        say("the older one again:")
        self._see_window(root, f"/home/{USER}/{package.name}")
        _expect(asked.version(root) == newer, f"it is still {newer}")
        self._end(root)

    def cluster(self) -> None:
        """Two roots in networks of their own, with a cable between them, are one home."""
        with self._home(self._package(".deb")) as (first, second):
            begun = time.monotonic()
            answer = self._answer_together(first, second)
            _expect(_ANSWER in answer, "two computers answer together")
            say(f"  answered after {time.monotonic() - begun:.1f} s")
            say("  " + first.run("potluck", "ps").strip().replace("\n", "\n  "))

    def update(self) -> None:
        """Both computers of a home are updated by its main computer; a bad version is left, and an old list refused."""
        # Imported here: the other steps need the standard library alone.
        from native.trial_releases import TrialReleases

        folder, url = self._work / "releases", f"http://127.0.0.1:{RELEASES}"
        releases = TrialReleases(self._package(".tar.xz"), folder, url)
        with (
            self._home(releases.package) as (first, second),
            internet(first, releases.folder, RELEASES),
        ):
            second.run("potluck", "update", "--automatic", "on")
            releases.publish(releases.newer)
            self._measured("the first computer updates itself", lambda: asked.updated(first))
            _expect(asked.version(first) == releases.newer, f"it is {releases.newer} now")
            until(lambda: asked.version(second) == releases.newer, 180, "the second follows")
            until(lambda: asked.is_up(second), 60, "the second has come up")
            self._need_home(first, second)

            self._measured("the first computer goes back", lambda: asked.updated(first, "back"))
            _expect(asked.version(first) == releases.own, f"it is {releases.own} again")
            self._need_home(first, second)

            self._try_bad(first, second, releases)
            self._take_back(first, second, releases)

    def _try_bad(self, first: Root, second: Root, releases: TrialReleases) -> None:
        """A version that does not come up is left again, and an older list refused."""
        releases.publish(releases.broken)
        said = self._measured("a version that is bad is tried", lambda: asked.updated(first))
        _expect("did not start on this computer" in said, "it says so")
        _expect(asked.version(first) == releases.own, "the one before is used on")
        self._need_home(first, second)
        _expect(
            releases.broken not in asked.known(second), "the second computer has not heard of it"
        )

        releases.publish(releases.newer)  # who shows it again keeps the next one back
        said = asked.updated(first, "check")
        _expect("Somebody may hold the newer one back" in said, "an old list is refused")

    def _take_back(self, first: Root, second: Root, releases: TrialReleases) -> None:
        """The first version is the newest one again: the second computer, which has another, hears of it and goes back."""
        releases.take_back()
        _expect(
            "the newest version" in asked.updated(first, "check"), f"{releases.own} is the newest"
        )
        until(lambda: "have taken version" in asked.known(second), 60, "the second hears of it")
        self._measured("the second computer goes back", lambda: asked.updated(second, "back"))
        _expect(asked.version(second) == releases.own, f"it is {releases.own} again")
        self._need_home(first, second)

    def _need_home(self, first: Root, second: Root) -> None:
        until(lambda: asked.members(first) == 2, 90, "both are one home")
        said = self._measured("they answer", lambda: self._answer_together(first, second))
        _expect(_ANSWER in said, "together, and right")

    @contextmanager
    def _home(self, package: Path) -> Iterator[tuple[Root, Root]]:
        """Two computers of one home; the second took its engine from the first, and has no Internet."""
        with ExitStack() as stack:
            names = stack.enter_context(two_networks())
            roots = [self._computer(stack, name, package) for name in names]
            first, second = roots
            if self._engine is not None:
                index = stack.enter_context(self._index(first))
                words = ("potluck", "engine", "install")
                said = self._measured(
                    "the first computer's engine comes from the Internet",
                    lambda: first.run(*words, limit_s=600, POTLUCK_ENGINE_INDEX=index),
                )
                say("  " + said.strip().splitlines()[-1])
            token = first.run("potluck", "invite").strip()
            words = second.command("potluck", "worker", "--join", token, "--memory", "2GB")
            begun = time.monotonic()
            log = stack.enter_context((self._work / "worker.log").open("w"))
            worker = stack.enter_context(subprocess.Popen(words, stdout=log, stderr=log))
            stack.callback(worker.terminate)
            until(lambda: asked.members(first) == 2, 60, "the second computer joins")
            say(f"  joined after {time.monotonic() - begun:.1f} s")
            if self._engine is not None:
                said = self._measured(
                    "the second computer's engine comes from the first, without the Internet",
                    lambda: second.run("potluck", "engine", "install", limit_s=600),
                )
                said = said.strip().splitlines()[-1]
                say(f"  {said}")
                _expect("from your home" in said and "Internet" not in said, "nothing else sent it")
            yield first, second

    def _computer(self, stack: ExitStack, name: str, package: Path) -> Root:
        """A clean root with a package, in a network of its own."""
        root = stack.enter_context(Root(self._make(name), name))
        self._need_bareness(root)
        is_deb = package.suffix == ".deb"
        if is_deb:
            shutil.copy(package, root.folder / "root")
            root.run("dpkg", "-i", f"/root/{package.name}", user=None)
        else:
            self._unpack(root, package)
        tree = "/opt/potluck" if is_deb else f"/home/{USER}/.local/opt/potluck/tree"
        if self._engine is None:
            self._install_engine(root, tree)
        named = f'mkdir -p ~/.config/potluck && echo \'{{"name": "{name}"}}\''
        root.run("sh", "-c", f"{named} >~/.config/potluck/settings.json")
        return root

    def _unpack(self, root: Root, package: Path) -> str:
        """Have a user install the .tar.xz. A desktop's program unpacks it; the smallest Debian has no `xz`."""
        home = root.folder / "home" / USER
        with tarfile.open(package) as archive:
            archive.extractall(home, filter="data")
        folder = package.name.removesuffix(".tar.xz")
        run("chroot", str(root.folder), "chown", "-R", f"{USER}:{USER}", f"/home/{USER}/{folder}")
        return root.run("sh", "-c", f"cd && {folder}/install.sh")

    def _answer_together(self, first: Root, second: Root) -> str:
        layers = f"{first.namespace}=3,{second.namespace}=3"
        return first.run("potluck", "chat", "--layers", layers, _PROMPT)

    @contextmanager
    def _index(self, root: Root) -> Iterator[str]:
        """A package index with the wheels of --engine, which this computer alone reaches."""
        assert self._engine is not None
        folder = self._work / "index"
        shutil.rmtree(folder, ignore_errors=True)
        for wheel in sorted(self._engine.glob("*.whl")):
            page = folder / "simple" / wheel.name.partition("-")[0].lower()
            page.mkdir(parents=True, exist_ok=True)
            shutil.copy(wheel, page)
            with (page / "index.html").open("a", encoding="utf-8") as file:
                file.write(f'<a href="{wheel.name.replace("+", "%2B")}">{wheel.name}</a>\n')
        with internet(root, folder, INDEX):
            yield f"http://127.0.0.1:{INDEX}/simple"

    def _use(self, root: Root, tree: str, window: str) -> None:
        self._install_engine(root, tree)
        demo = self._measured(
            "`potluck demo` answers", lambda: root.run("potluck", "demo", _PROMPT, limit_s=180)
        )
        _expect(_ANSWER in demo, "the guide's answer is right")
        chat = self._measured(
            "a first answer, from nothing", lambda: root.run("potluck", "chat", _PROMPT)
        )
        _expect(_ANSWER in chat, "`potluck chat` answers")
        self._see_window(root, window)
        self._end(root)

    def _end(self, root: Root) -> None:
        root.end(signal.SIGTERM)
        until(lambda: not root.processes(), 60, "everything ends")

    def _install_engine(self, root: Root, tree: str) -> None:
        """Install torch as a user does, or show the folder that stands for it."""
        if self._engine is not None:
            wheels = root.bind(self._engine, "mnt/wheels")
            words = ["potluck", "engine", "install", "--from", str(wheels)]
            self._measured("the engine is installed", lambda: root.run(*words, limit_s=600))
        elif self._torch is not None:
            where = root.bind(self._torch, "mnt/torch")
            site = next((root.folder / tree.lstrip("/")).glob("python/lib/python3*/site-packages"))
            (site / "torch-for-a-trial.pth").write_text(f"{where}\n", encoding="utf-8")

    def _see_window(self, root: Root, *words: str) -> None:
        """Start the window, and take a picture of it."""
        picture = self._work / f"window-{self._suite}-{root.folder.name}.png"
        took_s = see(root, words, self._display, picture, limit_s=_WINDOW_S)
        say(f"ok: the window is open, after {took_s:.2f} s; a picture: {picture}")

    def _apt_install(self, root: Root, package: Path) -> None:
        shutil.copy(package, root.folder / "root")
        root.run("apt-get", "update", "-qq", user=None)
        root.run("apt-get", "install", "-y", f"/root/{package.name}", user=None, limit_s=600)

    def _libraries_of_desktops(self, root: Root) -> None:
        """Install what every desktop has, by the recommendations of the .deb."""
        text = run("dpkg-deb", "--field", str(self._package(".deb")), "Recommends")
        names = [choice.split("|") for choice in text.strip().split(",")]
        root.run("apt-get", "update", "-qq", user=None)
        known = [[n.strip() for n in choice if self._knows(root, n.strip())] for choice in names]
        words = [choice[0] for choice in known if choice]
        root.run("apt-get", "install", "-y", *words, user=None, limit_s=600)

    def _knows(self, root: Root, name: str) -> bool:
        return bool(root.run("apt-cache", "madison", name, user=None).strip())

    def _need_nothing(self, home: Path) -> None:
        left = [p for p in home.rglob("*potluck*") if ".cache/mesa" not in str(p)]
        _expect(not left, f"nothing is left with --delete {left or ''}")

    def _need_bareness(self, root: Root) -> None:
        found = [program for program in _ABSENT if root.has(program)]
        _expect(not found, f"there is no Python and no compiler {found or ''}")

    def _make(self, name: str) -> Path:
        return make(self._suite, self._work / "base", self._work / f"root-{name}")

    def _package(self, suffix: str) -> Path:
        found = sorted(self._packages.glob(f"potluck*{suffix}"))
        if not found:
            raise BuildError(f"There is no package {suffix} in {self._packages}. Build it first.")
        return found[-1]

    def _measured(self, what: str, do: Callable[[], object]) -> str:
        begun = time.monotonic()
        result = do()
        say(f"ok: {what} ({time.monotonic() - begun:.1f} s)")
        return str(result)


def _expect(is_so: bool, what: str) -> None:
    if not is_so:
        raise BuildError(f"not so: {what}")
    say(f"ok: {what}")


def _size(folder: Path) -> int:
    return sum(p.lstat().st_size for p in folder.rglob("*"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--packages", type=Path, default=ROOT / "dist", help="where they are (dist)"
    )
    steps = ["deb", "tarball", "appimage", "cluster", "update"]
    parser.add_argument(
        "--only", action="append", choices=steps, help="one of the steps; repeatable"
    )
    parser.add_argument("--suite", default="bookworm", help="of Debian (%(default)s)")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "trial", help="for the roots")
    parser.add_argument("--display", type=int, default=77, help="a free number of an X server")
    engine = parser.add_mutually_exclusive_group(required=True)
    engine.add_argument("--engine", type=Path, metavar="DIR", help="wheels of torch and its needs")
    engine.add_argument("--torch", type=Path, metavar="DIR", help="a folder with torch unpacked")
    return parser


if __name__ == "__main__":
    sys.exit(main())
