"""The native packages: what can be said of them without building one."""

import io
import os
import plistlib
import re
import tarfile
from pathlib import Path

import pytest
from native import archives, glibc, libraries, linux, macos, pruning, requirements, windows
from native.launchers import FILES
from native.project import ROOT, BuildError, epoch, machine, package_name, version

from potluck import __version__

posix = pytest.mark.skipif(os.name != "posix", reason="needs links, modes and xz")
ELF = b"\x7fELF" + b"\0" * 60


# --- names and dates


def test_packages_have_the_version_of_the_project() -> None:
    assert version() == __version__
    assert (
        package_name("linux", ".tar.xz", arch="AMD64") == f"potluck-{version()}-linux-x86_64.tar.xz"
    )
    assert machine("arm64") == "aarch64"


def test_the_date_of_a_package_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert epoch() == 1_700_000_000

    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(BuildError, match="no number of seconds"):
        epoch()


# --- the lock


def test_the_lock_is_of_these_dependencies() -> None:
    assert requirements.is_current(), "python3 installers/build.py lock"


def test_each_line_of_the_lock_has_a_version_and_hashes_and_none_is_torch() -> None:
    text = requirements.LOCK.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]

    assert all(re.match(r"[a-z0-9-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", line) for line in lines)
    assert not [line for line in lines if line.startswith(("torch", "nvidia", "triton"))]


def test_other_dependencies_need_another_lock(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["numpy>=2", "torch>=2.8"]\n'
    )

    assert requirements.app_requirements(tmp_path) == ["numpy>=2"]
    assert not requirements.is_current(root=tmp_path)
    assert not requirements.is_current(tmp_path / "missing.txt")


# --- libraries of Linux

LDD = """\
\tlinux-vdso.so.1 (0x00007ffd)
\tlibssl.so.3 => /lib/x86_64-linux-gnu/libssl.so.3 (0x00007f)
\tlibxcb-cursor.so.0 => not found
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f)
"""


def test_what_ldd_prints_is_read() -> None:
    assert libraries.parse_ldd(LDD) == {
        "libssl.so.3": Path("/lib/x86_64-linux-gnu/libssl.so.3"),
        "libxcb-cursor.so.0": None,
        "libc.so.6": Path("/lib/x86_64-linux-gnu/libc.so.6"),
    }
    assert libraries.parse_ldd("\tnot a dynamic executable\n") == {}


@pytest.mark.parametrize("name", ["libc.so.6", "ld-linux-x86-64.so.2", "libGL.so.1", "libX11.so.6"])
def test_what_every_system_has_stays_out(name: str) -> None:
    assert libraries.is_excluded(name)


@pytest.mark.parametrize(
    "name", ["libxcb-cursor.so.0", "libssl.so.3", "libcrypt.so.1", "libffi.so.8"]
)
def test_what_a_system_may_lack_comes_along(name: str) -> None:
    assert not libraries.is_excluded(name)


@posix
def test_a_link_to_a_library_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.so.1").write_bytes(ELF)
    (tmp_path / "a.so").symlink_to("a.so.1")

    assert libraries.is_elf(tmp_path / "a.so.1")
    assert not libraries.is_elf(tmp_path / "a.so")
    assert not libraries.is_elf(tmp_path)


def test_the_newest_glibc_that_is_asked_for_counts(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(ELF + b"GLIBC_2.9\0GLIBC_2.34\0GLIBC_PRIVATE\0")
    (tmp_path / "text").write_bytes(b"GLIBC_2.99\0")

    assert glibc.needed(tmp_path) == "2.34"


# --- what is left out


def test_qt_keeps_what_the_window_uses_and_the_languages(tmp_path: Path) -> None:
    qt = tmp_path / "PySide6" / "Qt"
    kept = ["lib/libQt6Core.so.6", "lib/libicudata.so.73", "plugins/platforms/libqxcb.so"]
    kept += ["translations/qtbase_de.qm", "../QtWidgets.abi3.so", "../libpyside6.abi3.so.6.11"]
    gone = ["lib/libQt6Quick.so.6", "plugins/sqldrivers/libqsqlite.so", "qml/a", "libexec/uic"]
    gone += ["translations/qtbase_fr.qm", "../QtQml.abi3.so", "../designer", "../QtCore.pyi"]
    for name in kept + gone:
        file = qt / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    pruning.prune(tmp_path)

    left = {p for p in tmp_path.rglob("*") if p.is_file()}
    assert left == {(qt / name).resolve() for name in kept}


def test_tests_and_headers_of_others_are_left_out(tmp_path: Path) -> None:
    for name in ("numpy/linalg/tests/a.py", "numpy/x.pyi", "numpy/linalg/b.py", "bin/tool"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    pruning.prune(tmp_path)

    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [tmp_path / "numpy/linalg/b.py"]


# --- archives


@posix
def test_an_archive_of_the_same_files_is_the_same(tmp_path: Path) -> None:
    found: list[bytes] = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "run").write_text("#!/bin/sh\n")
        (folder / "bin" / "run").chmod(0o700 if number == 1 else 0o755)
        (folder / "link").symlink_to("bin/run")
        archive = archives.pack(folder, tmp_path / f"{number}.tar.xz", name="p", seconds=1000)
        found.append(archive.read_bytes())

    assert found[0] == found[1]
    with tarfile.open(fileobj=io.BytesIO(found[0])) as tar:
        members = {member.name: member for member in tar}
    assert list(members) == ["p", "p/bin", "p/bin/run", "p/link"]
    assert members["p/bin/run"].mode == 0o755
    assert {(m.uid, m.uname, m.mtime) for m in members.values()} == {(0, "root", 1000)}


def test_a_checksum_is_what_sha256sum_reads(tmp_path: Path) -> None:
    (tmp_path / "a.deb").write_bytes(b"abc")

    beside = archives.write_checksum(tmp_path / "a.deb")

    assert beside.read_text() == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a.deb\n"
    )


# --- Linux


def test_the_deb_needs_no_window_and_says_so() -> None:
    fields = dict(
        line.split(": ", 1)
        for line in linux.control_file("amd64", "2.34", 500).splitlines()
        if not line.startswith(" ")
    )

    assert fields["Depends"] == "libc6 (>= 2.34), libstdc++6"
    assert "libegl1" in fields["Recommends"]
    assert fields["Installed-Size"] == "500"


def test_the_entry_of_the_desktop_opens_links_and_models() -> None:
    text = (FILES / "potluck.desktop").read_text(encoding="utf-8")

    assert "Exec={exec} %u\n" in text
    assert "MimeType=x-scheme-handler/potluck;application/x-gguf;\n" in text


@pytest.mark.parametrize("name", ["potluck.ufw", "potluck-firewalld.xml"])
def test_firewalls_are_told_the_ports_of_the_readme(name: str) -> None:
    text = (FILES / name).read_text(encoding="utf-8")
    assert "47777" in text
    assert "5353" in text


# --- macOS


def test_the_app_starts_only_where_its_engine_computes() -> None:
    oldest = str(macos.info_plist()["LSMinimumSystemVersion"])
    engine = (ROOT / "assets/engine/pylock.metal.toml").read_text(encoding="utf-8")
    wheels = re.findall(r"macosx_(\d+)_(\d+)_arm64", engine)
    assert tuple(map(int, oldest.split("."))) >= max((int(a), int(b)) for a, b in wheels)


def test_the_app_says_what_it_does_in_the_network_and_what_it_opens() -> None:
    plist = plistlib.loads(plistlib.dumps(macos.info_plist()))
    assert plist["NSBonjourServices"] == ["_potluck._tcp"]
    assert "computers of your home" in plist["NSLocalNetworkUsageDescription"]
    assert plist["CFBundleURLTypes"][0]["CFBundleURLSchemes"] == ["potluck"]
    assert plist["CFBundleShortVersionString"] == __version__
    assert all(macos.entitlements().values())


def test_what_is_inside_is_signed_before_the_app_and_programs_with_entitlements(
    tmp_path: Path,
) -> None:
    app = tmp_path / "Potluck.app"
    for name in ("Contents/MacOS/Potluck", "Contents/Resources/potluck/python/bin/python3.13"):
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_bytes(b"\xcf\xfa\xed\xfe")
    library = app / "Contents/Resources/potluck/python/lib/libpython.dylib"
    library.parent.mkdir()
    library.write_bytes(b"\xca\xfe\xba\xbe")
    (library.parent / "os.py").write_text("pass\n")

    commands = macos.signing(app, tmp_path / "e.plist", "Developer ID Application: A")

    signed = [Path(command[-1]).name for command in commands]
    assert signed[-1] == "Potluck.app"
    assert set(signed) == {"libpython.dylib", "python3.13", "Potluck.app"}
    entitled = [Path(c[-1]).name for c in commands if "--entitlements" in c]
    assert entitled == ["python3.13", "Potluck.app"]
    assert all("--timestamp" in c and "runtime" in c for c in commands)


def test_an_app_without_a_certificate_is_signed_for_this_mac(tmp_path: Path) -> None:
    (command,) = macos.signing(tmp_path, tmp_path / "e.plist", "-")
    assert command[command.index("--sign") + 1] == "-"
    assert "--timestamp" not in command


# --- Windows


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0.1.0", "0.1.0.0"),
        ("1.2", "1.2.0.0"),
        ("2.0.0rc1", "2.0.0.0"),
        ("1.2.3+local.7", "1.2.3.0"),
    ],
)
def test_windows_gets_four_numbers(text: str, numbers: str) -> None:
    assert windows.file_version(text) == numbers


def test_the_installer_asks_nobody_for_rights_and_what_shall_stay() -> None:
    text = (FILES / "potluck.iss").read_text(encoding="utf-8")

    assert "PrivilegesRequired=lowest" in text
    assert "pythonw.exe" in text
    given = {
        word[2:].partition("=")[0] for word in windows.defines(Path("tree"), Path("out/p.exe"))
    }
    assert set(re.findall(r"\{#(\w+)\}", text)) - {"Window", "Words"} == given
    assert "uninstall ' + Wish" in text
