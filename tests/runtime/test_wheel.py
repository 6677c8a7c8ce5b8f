"""Wheels are unpacked whole and inside their folder, or not at all."""

import hashlib
import os
import stat
import threading
import zipfile
from pathlib import Path

import pytest
from tiny_wheels import make_wheels, zip_wheel

from potluck.errors import IntegrityError
from potluck.runtime import wheel as wheels
from potluck.runtime.stopping import StoppedError
from potluck.runtime.wheel import unpack

MARK = "a" * 64


def test_a_wheel_is_unpacked_without_its_scripts(tmp_path: Path) -> None:
    for path in make_wheels(tmp_path):
        unpack(path, tmp_path / "into", path.stem)

    found = {p.relative_to(tmp_path / "into").as_posix() for p in (tmp_path / "into").rglob("*")}
    assert {"torch/__init__.py", "sympy/__init__.py", "sympy-1.14.0.dist-info/METADATA"} <= found
    assert not [name for name in found if "isympy" in name or ".data" in name]


def test_unpacking_that_is_stopped_leaves_no_mark(tmp_path: Path) -> None:
    path, _ = make_wheels(tmp_path)
    stopped = threading.Event()
    stopped.set()

    with pytest.raises(StoppedError):
        unpack(path, tmp_path / "into", MARK, stopped)
    assert not (tmp_path / "into" / ".unpacked").exists()

    unpack(path, tmp_path / "into", MARK)
    assert (tmp_path / "into" / ".unpacked" / MARK).exists()


def test_libraries_of_another_scheme_go_into_the_folder(tmp_path: Path) -> None:
    path = zip_wheel(
        tmp_path / "torch-2.13.0-py3-none-any.whl", {"torch-2.13.0.data/platlib/t.py": b"1"}
    )

    unpack(path, tmp_path / "into", MARK)

    assert (tmp_path / "into" / "t.py").read_bytes() == b"1"


@pytest.mark.parametrize(
    "name",
    [
        "../out",
        "/etc/out",
        "a/../../out",
        "C:/out",
        "a\\..\\out",
        "a//b",
        "a/./b",
        "a/nul\0.py",
        "con ",
        "a.",
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    path = zip_wheel(tmp_path / "a.whl", {name: b"x"})

    with pytest.raises(IntegrityError):
        unpack(path, tmp_path / "into", MARK)

    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.whl"]


def test_a_link_is_refused(tmp_path: Path) -> None:
    path = zip_wheel(tmp_path / "a.whl", {"torch/a.py": b"x"})
    link = zipfile.ZipInfo("torch/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(link, "/etc/passwd")

    with pytest.raises(IntegrityError, match="no plain file"):
        unpack(path, tmp_path / "into", MARK)


def test_a_file_that_the_list_lacks_is_refused(tmp_path: Path) -> None:
    path = zip_wheel(tmp_path / "a.whl", {"torch/a.py": b"x"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("torch/more.py", b"import os")

    with pytest.raises(IntegrityError, match="list"):
        unpack(path, tmp_path / "into", MARK)


def test_a_file_with_other_bytes_than_listed_is_refused(tmp_path: Path) -> None:
    wrong = {"torch/a.py": ("A" * 43, 1)}
    path = zip_wheel(tmp_path / "a.whl", {"torch/a.py": b"x"}, record=wrong)

    with pytest.raises(IntegrityError, match="other bytes"):
        unpack(path, tmp_path / "into", MARK)

    assert not (tmp_path / "into" / "torch" / "a.py").exists()


def test_two_files_that_are_one_on_other_systems_are_refused(tmp_path: Path) -> None:
    path = zip_wheel(tmp_path / "a.whl", {"torch/a.py": b"x", "torch/A.py": b"y"})

    with pytest.raises(IntegrityError, match="twice"):
        unpack(path, tmp_path / "into", MARK)


def test_a_bomb_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(wheels, "MOST_BYTES", 1 << 20)
    path = zip_wheel(tmp_path / "a.whl", {"torch/zeros": bytes(2 << 20)})
    assert path.stat().st_size < 10_000

    with pytest.raises(IntegrityError, match="too large"):
        unpack(path, tmp_path / "into", MARK)

    assert not (tmp_path / "into").exists()


def test_a_file_that_is_longer_than_it_says_is_refused(tmp_path: Path) -> None:
    data = b"x" * 100
    path = zip_wheel(tmp_path / "a.whl", {"torch/a.py": data})
    short = zip_wheel(
        tmp_path / "b.whl", {"torch/a.py": data}, record={"torch/a.py": ("A" * 43, 1)}
    )

    with pytest.raises(IntegrityError, match="list"):
        unpack(short, tmp_path / "into", MARK)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(IntegrityError, match="no wheel"):
        unpack(path, tmp_path / "into", MARK)


@pytest.mark.parametrize("cut", range(0, 400, 37))
def test_any_cut_or_damaged_archive_is_an_error_in_words(tmp_path: Path, cut: int) -> None:
    whole = zip_wheel(tmp_path / "a.whl", {"torch/a.py": b"x" * 50}).read_bytes()
    damaged = bytearray(whole)
    damaged[cut] ^= 0xFF
    (tmp_path / "cut.whl").write_bytes(whole[:cut])
    (tmp_path / "damaged.whl").write_bytes(damaged)

    with pytest.raises(IntegrityError):
        unpack(tmp_path / "cut.whl", tmp_path / "into", MARK)
    try:
        unpack(tmp_path / "damaged.whl", tmp_path / "into2", MARK)
    except IntegrityError:
        assert not (tmp_path / "into2" / ".unpacked" / MARK).exists()


def test_a_wheel_that_was_unpacked_to_its_end_is_not_read_again(tmp_path: Path) -> None:
    path = zip_wheel(tmp_path / "a.whl", {"torch/a.py": b"x"})
    unpack(path, tmp_path / "into", MARK)
    path.write_bytes(b"gone")

    unpack(path, tmp_path / "into", MARK)

    assert hashlib.sha256((tmp_path / "into" / "torch" / "a.py").read_bytes()).digest()


@pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX's")
def test_a_program_of_a_wheel_can_be_run(tmp_path: Path) -> None:
    path = zip_wheel(tmp_path / "a.whl", {"torch/bin/helper": b"#!/bin/sh\n"})
    with zipfile.ZipFile(path) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        for info, data in members:
            info.external_attr = (stat.S_IFREG | 0o755) << 16
            archive.writestr(info, data)

    unpack(path, tmp_path / "into", MARK)

    assert os.access(tmp_path / "into" / "torch" / "bin" / "helper", os.X_OK)
