"""A release is made of a clean checkout that has news, or not at all. The repositories are real."""

import datetime
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from installer import load

NEWS = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- A kettle.\n\n## [0.1.0] - 2026-01-01\n\n- A stove.\n"


LINUX = ("manylinux_2_28_x86_64", "manylinux_2_28_aarch64")


def lock(*systems: str) -> str:
    """A lock whose torch is for these systems."""
    wheels = ", ".join(
        f'{{ name = "torch-2.13.0-cp312-cp312-{system}.whl" }}' for system in systems
    )
    return f'[[packages]]\nname = "torch"\nwheels = [{wheels}]\n'


def maintained(address: str) -> str:
    return f'[project]\nmaintainers = [{{ name = "Ana", email = "{address}" }}]\n'


def git(root: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *words], capture_output=True, check=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def release() -> ModuleType:
    return load("release")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with a version, news, and steps that pass."""
    for path, text in {
        "core/potluck/__init__.py": '"""Potluck."""\n\n__version__ = "0.1.0"\n',
        "CHANGELOG.md": NEWS,
        "pyproject.toml": maintained("potluck@example.org"),
        "installers/ci.py": "import sys; sys.exit(0)\n",
        "assets/engine/pylock.cpu.toml": lock("win_amd64", *LINUX),
        "assets/engine/pylock.cuda.toml": lock("win_amd64", *LINUX),
        "assets/engine/pylock.metal.toml": lock("macosx_14_0_arm64"),
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    git(tmp_path, "config", "user.name", "Ana")
    git(tmp_path, "config", "user.email", "ana@example.org")
    commit(tmp_path)
    return tmp_path


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "all")


def test_a_release_is_a_commit_and_a_tag_and_nothing_is_pushed_unasked(
    root: Path, release: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert release.main(["0.2.0"], root) == 0

    assert git(root, "status", "--porcelain") == ""
    assert git(root, "cat-file", "-t", "v0.2.0") == "tag"
    assert git(root, "rev-parse", "v0.2.0^{commit}") == git(root, "rev-parse", "HEAD")
    assert '__version__ = "0.2.0"' in (root / release.VERSION_FILE).read_text(encoding="utf-8")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    assert (root / "CHANGELOG.md").read_text(encoding="utf-8") == NEWS.replace(
        "## [Unreleased]", f"## [Unreleased]\n\n## [0.2.0] - {today}"
    )
    assert "nothing was pushed" in capsys.readouterr().err
    assert release.news(root, "## [0.2.0]").endswith("- A kettle.")
    assert release.main(["0.3.0"], root) == 1  # no news since
    assert "what is new?" in capsys.readouterr().err


def test_a_dry_run_changes_nothing(root: Path, release: ModuleType) -> None:
    assert release.main(["0.2.0", "--dry-run"], root) == 0
    assert git(root, "status", "--porcelain") == git(root, "tag") == ""


def test_a_check_that_fails_leaves_everything_as_it_was(
    root: Path, release: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    step = "import sys; sys.exit(sys.argv[1] == 'lint')\n"
    (root / "installers/ci.py").write_text(step, encoding="utf-8")
    commit(root)

    assert release.main(["0.2.0"], root) == 1

    assert "The step lint failed" in capsys.readouterr().err
    assert git(root, "status", "--porcelain") == git(root, "tag") == ""
    assert release.main(["0.2.0", "--checked"], root) == 0


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("0.2", "write three numbers"),
        ("v0.2.0", "write three numbers"),
        ("0.0.9", "does not come after 0.1.5"),
        ("0.1.5", "does not come after 0.1.5"),
    ],
)
def test_a_version_that_cannot_follow_is_refused(
    root: Path, release: ModuleType, capsys: pytest.CaptureFixture[str], version: str, why: str
) -> None:
    git(root, "tag", "v0.1.5")
    git(root, "tag", "vacation")
    assert release.main([version], root) == 1
    assert why in capsys.readouterr().err
    assert git(root, "tag").split() == ["v0.1.5", "vacation"]


def test_uncommitted_changes_are_named(
    root: Path, release: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "new.py").write_text("", encoding="utf-8")
    assert release.main(["0.2.0"], root) == 1
    assert "?? new.py" in capsys.readouterr().err


@pytest.mark.parametrize("news", ["", "### Added\n\n"])
def test_headings_alone_are_no_news(root: Path, release: ModuleType, news: str) -> None:
    text = f"# Changelog\n\n## [Unreleased]\n\n{news}## [0.1.0]\n\n- Old.\n"
    (root / "CHANGELOG.md").write_text(text, encoding="utf-8")
    assert release.news(root) == ""
    assert release.news(root, "## [0.1.0]") == "- Old."
    assert release.news(root, "## [9.9.9]") == ""


def test_a_system_that_no_lock_has_an_engine_for_ends_it(
    root: Path, release: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "assets/engine/pylock.cpu.toml").write_text(lock("win_amd64"), encoding="utf-8")
    (root / "assets/engine/pylock.metal.toml").unlink()
    commit(root)

    assert release.main(["0.2.0"], root) == 1

    said = capsys.readouterr()
    lacking = "cpu for Linux x86-64, cpu for Linux arm64, metal for macOS arm64"
    assert lacking in said.out + said.err
    assert git(root, "tag") == ""


def test_packages_name_somebody_who_can_be_written_to(
    root: Path, release: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "pyproject.toml").write_text(maintained("all@potluck.invalid"), encoding="utf-8")
    commit(root)

    assert release.main(["0.2.0", "--dry-run"], root) == 1

    assert "Ana <all@potluck.invalid>, to whom nobody can write" in capsys.readouterr().err
