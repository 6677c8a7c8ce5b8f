"""The AppImage: its AppRun installs, opens and updates with small trees; its starter unpacks an image and hands over to AppRun."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from native import appimage
from native.launchers import FILES, fill
from native.pictures import SIZES
from releases import make_tree

from potluck.update.versions import Versions

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the AppImage is for Linux")
needs_tools = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("cc", "mksquashfs"))
    or not Path("/usr/include/squashfuse").exists(),
    reason=f"needs Debian's {', '.join(appimage.NEEDED)}",
)


class Computer:
    """A user's folder, and what a desktop finds beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        self.programs = folder / "programs"
        for made in (self.home, self.programs):
            made.mkdir()
        self.target = self.home / ".local/opt/potluck"

    def appdir(self, version: str, *, code: str = "") -> Path:
        """The folder of an AppImage, as it is unpacked; its window says with what it was opened."""
        folder = self.folder / f"AppDir {version}"
        tree = make_tree(folder / "package/tree", version, code=code)
        for name, says in (("potluck", version), ("potluck-window", f'{version} opened "$@"')):
            program = tree / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(f"#!/bin/sh\necho {says}\n")
            program.chmod(0o755)
        (tree / "share/icons").mkdir(parents=True)
        for size in SIZES:
            (tree / f"share/icons/potluck-{size}.png").touch()
        for name in ("install.sh", "uninstall.sh", "potluck.desktop", "potluck-mime.xml"):
            shutil.copy(FILES / name, folder / "package" / name)
        fill("AppRun", folder / "AppRun", {"version": version, "megabytes": "1"})
        return folder

    def start(self, appdir: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(appdir, *words),
            env=self.environ(**environ),
            capture_output=True,
            text=True,
            timeout=60,
        )

    def command(self, appdir: Path, *words: str) -> list[str]:
        return ["sh", str(appdir / "AppRun"), *words]

    def environ(self, **environ: str) -> dict[str, str]:
        path = f"{self.programs}:{os.environ['PATH']}"
        return {"HOME": str(self.home), "PATH": path, "PYTHONPATH": "/another/Python's"} | environ

    def add(self, program: str, does: str) -> Path:
        """A program that writes down with what it was started, and does this."""
        log = self.folder / f"{program}.log"
        made = self.programs / program
        made.write_text(f'#!/bin/sh\necho "$@" >>"{log}"\n{does}\n')
        made.chmod(0o755)
        return log

    @property
    def left(self) -> list[str]:
        """What is beside the program's folder, which nothing needs any more."""
        return sorted(p.name for p in self.target.parent.iterdir() if p != self.target)


@pytest.fixture
def computer(tmp_path: Path) -> Computer:
    return Computer(tmp_path)


def test_the_first_start_installs_as_the_tarball_does_and_opens_what_is_installed(
    computer: Computer,
) -> None:
    done = computer.start(computer.appdir("1.0.0"), "potluck:an invitation", "b")

    assert done.stdout == "1.0.0 opened potluck:an invitation b\n", done.stderr
    assert f"Putting Potluck 1.0.0 into {computer.target}" in done.stderr
    assert (computer.target / "tree").readlink() == Path("versions/1.0.0")
    assert (computer.home / ".local/share/applications/potluck.desktop").exists()
    assert (computer.home / ".local/bin/potluck").resolve().is_file()
    assert (computer.target / "uninstall.sh").exists()
    assert computer.left == []


def test_later_starts_only_open_it(computer: Computer) -> None:
    appdir = computer.appdir("1.0.0")
    computer.start(appdir)
    shutil.rmtree(appdir / "package")

    done = computer.start(appdir, "again")

    assert (done.stdout, done.stderr) == ("1.0.0 opened again\n", "")


def test_a_newer_one_is_put_beside_it_and_the_one_before_can_be_used_again(
    computer: Computer,
) -> None:
    computer.start(computer.appdir("1.0.0"))

    done = computer.start(computer.appdir("1.1.0"))

    assert done.stdout == "1.1.0 opened\n", done.stderr
    versions = Versions(computer.target, "1.1.0")
    assert versions.is_on_trial
    assert versions.before == "1.0.0"
    assert computer.left == []


def test_an_older_one_opens_what_is_there(computer: Computer) -> None:
    computer.start(computer.appdir("1.1.0"))

    done = computer.start(computer.appdir("1.0.0"))

    assert (done.stdout, done.stderr) == ("1.1.0 opened\n", "")


def test_one_that_its_owner_went_back_from_is_not_taken_again(computer: Computer) -> None:
    newer = computer.appdir("1.1.0")
    computer.start(computer.appdir("1.0.0"))
    computer.start(newer)
    Versions(computer.target, "1.1.0").go_back("Its owner went back.", by_owner=True)

    assert computer.start(newer).stdout == "1.0.0 opened\n"


def test_a_newer_one_that_does_not_start_is_said_and_what_is_there_is_opened(
    computer: Computer,
) -> None:
    computer.start(computer.appdir("1.0.0"))

    done = computer.start(computer.appdir("1.1.0", code="raise SystemExit('broken')"))

    assert "Potluck 1.1.0 does not start on this computer" in done.stderr
    assert done.stdout == "1.0.0 opened\n"
    assert computer.left == []


def test_what_install_sh_put_into_another_folder_is_opened(computer: Computer) -> None:
    appdir = computer.appdir("1.0.0")
    other = computer.folder / "ein Ordner"
    words = ["sh", str(appdir / "package/install.sh"), str(other)]
    subprocess.run(words, env=computer.environ(), check=True, capture_output=True)

    assert computer.start(appdir).stdout == "1.0.0 opened\n"
    assert not computer.target.exists()


def test_a_folder_that_is_no_potluck_is_left_alone(computer: Computer) -> None:
    computer.target.mkdir(parents=True)

    done = computer.start(computer.appdir("1.0.0"))

    assert done.returncode == 1
    assert "is no Potluck" in done.stderr
    assert computer.left == []


@pytest.mark.parametrize(
    ("program", "question"), [("zenity", "--question"), ("kdialog", "--yesno")]
)
def test_who_says_no_on_a_desktop_has_nothing_installed(
    computer: Computer, program: str, question: str
) -> None:
    log = computer.add(program, f'case "$*" in *{question}*) exit 1 ;; esac')

    done = computer.start(
        computer.appdir("1.0.0"), DISPLAY=":0", XDG_CURRENT_DESKTOP="KDE", LANG="de_DE.UTF-8"
    )

    assert (done.returncode, done.stdout) == (0, "")
    assert f"Potluck kommt nach {computer.target}" in log.read_text()
    assert "keinen Administrator" in log.read_text()
    assert not computer.target.exists()


def test_what_takes_a_while_is_shown_until_it_is_done(computer: Computer) -> None:
    ended = computer.folder / "ended"
    waits = f"trap 'echo >\"{ended}\"; exit' TERM; while read -r line; do :; done"
    log = computer.add("zenity", f'case "$*" in *--progress*) {waits} ;; esac')

    done = computer.start(computer.appdir("1.0.0"), DISPLAY=":0")

    assert done.stdout == "1.0.0 opened\n"
    assert ["--question" in line for line in log.read_text().splitlines()] == [True, False]
    assert "--progress" in log.read_text()
    assert ended.exists()


def test_two_impatient_clicks_install_it_once(computer: Computer) -> None:
    appdir = computer.appdir("1.0.0")
    both = [
        subprocess.Popen(
            computer.command(appdir),
            env=computer.environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]

    said = [process.communicate(timeout=60) for process in both]

    assert [out for out, _ in said] == ["1.0.0 opened\n"] * 2
    assert "".join(err for _, err in said).count("Putting Potluck") == 1
    assert computer.left == []


def test_one_that_was_ended_in_the_middle_is_in_nobodys_way(computer: Computer) -> None:
    computer.target.parent.mkdir(parents=True)
    gone = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True)
    (computer.target.parent / ".potluck.appimage").mkdir()
    (computer.target.parent / ".potluck.appimage.lock").symlink_to(gone.stdout.strip())

    assert computer.start(computer.appdir("1.0.0")).stdout == "1.0.0 opened\n"
    assert computer.left == []


# --- the starter


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole AppImage with a small AppRun, in a folder with a space."""
    folder = tmp_path_factory.mktemp("an image")
    inside = folder / "AppDir"
    (inside / "package/tree/deep").mkdir(parents=True)
    (inside / "package/tree/deep/large").write_bytes(bytes(range(256)) * 12_001)  # several blocks
    (inside / "package/tree/deep/large").chmod(0o755)
    (inside / "package/tree/empty").touch(0o644)
    (inside / "package/tree/link").symlink_to("deep/large")
    (inside / "other").write_text("other")
    (inside / "AppRun").write_text('#!/bin/sh\necho "$APPIMAGE|$0|$#|$*"\nexit 7\n')
    return joined(folder, inside, "small.AppImage")


def joined(folder: Path, inside: Path, name: str) -> Path:
    program = appimage.marked(appimage.starter(folder / "starter").read_bytes())
    return appimage.join(program, inside, folder / name, level=1)


def run(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=60)


@needs_tools
@pytest.mark.parametrize("option", [[], ["--appimage-extract-and-run"]])
def test_a_start_hands_over_to_apprun_with_its_words_and_its_status(
    image: Path, option: list[str]
) -> None:
    done = run(image, *option, "one", "two words")

    assert done.stdout == f"{image}|AppRun|2|one two words\n"
    assert done.returncode == 7


@needs_tools
def test_everything_is_unpacked_as_it_was(image: Path, tmp_path: Path) -> None:
    done = run(image, "--appimage-extract", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    out = tmp_path / "squashfs-root"
    same = ("diff", "-r", "--no-dereference", str(image.parent / "AppDir"), str(out))
    assert run(*same).stdout == ""
    assert os.access(out / "package/tree/deep/large", os.X_OK)
    assert (out / "other").stat().st_mode & 0o111 == 0
    assert run(image, "--appimage-extract", cwd=tmp_path).returncode == 0  # a second time, too


@needs_tools
def test_a_part_is_unpacked_by_its_name(image: Path, tmp_path: Path) -> None:
    assert run(image, "--appimage-extract", "package", cwd=tmp_path).returncode == 0
    assert [p.name for p in (tmp_path / "squashfs-root").iterdir()] == ["package"]


@needs_tools
def test_others_know_it_as_an_appimage_and_find_its_image(image: Path) -> None:
    assert image.read_bytes()[8:11] == b"AI\x02"
    offset = int(run(image, "--appimage-offset").stdout)
    assert image.read_bytes()[offset : offset + 4] == b"hsqs"


@needs_tools
def test_one_that_was_not_downloaded_whole_says_so(image: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.AppImage"
    cut.write_bytes(image.read_bytes()[: int(run(image, "--appimage-offset").stdout) + 40])
    cut.chmod(0o755)

    done = run(cut)

    assert done.returncode == 127
    assert "download it again" in done.stderr


@needs_tools
def test_the_same_files_make_the_same_image(image: Path, tmp_path: Path) -> None:
    again = joined(tmp_path, image.parent / "AppDir", "again.AppImage")
    assert again.read_bytes() == image.read_bytes()
