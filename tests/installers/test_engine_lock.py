"""The script that makes locks: what it finds in an index, and what it refuses."""

from pathlib import Path

import engine_lock
import httpx
import pytest
from packaging.requirements import Requirement
from tiny_wheels import TORCH, make_wheels, wheel_of, zip_wheel
from wheel_server import WheelServer, serving

from potluck.runtime.lock import read_lock

pytestmark = pytest.mark.net


def served(*paths: Path) -> WheelServer:
    return WheelServer({f"/{path.name}": path.read_bytes() for path in paths})


def lock(server: WheelServer, variant: str, *, base: tuple[Requirement, ...] = ()) -> str:
    with httpx.Client() as client:
        indexes = engine_lock.Indexes(client, f"{server.address}/simple", None)
        found, lacking = engine_lock.resolve(variant, ["2.13.0"], indexes, base)
        return engine_lock.write(variant, found, indexes) if found else "\n".join(lacking)


def test_a_lock_names_torch_and_what_it_needs(tmp_path: Path) -> None:
    paths = make_wheels(tmp_path)
    with serving(served(*paths)) as server:
        read = read_lock(lock(server, "cpu").encode())

    assert read.variant == "cpu"
    assert [wheel.digest for wheel in read.wheels()] == [wheel_of(p).digest for p in paths]
    assert all(
        wheel.nbytes == p.stat().st_size for wheel, p in zip(read.wheels(), paths, strict=True)
    )


def test_what_potluck_needs_anyway_is_left_out(tmp_path: Path) -> None:
    paths = make_wheels(tmp_path)
    with serving(served(*paths)) as server:
        read = read_lock(lock(server, "cpu", base=(Requirement("sympy"),)).encode())

    assert [wheel.name for wheel in read.wheels()] == ["torch"]


def test_a_build_for_another_gpu_is_not_listed(tmp_path: Path) -> None:
    with serving(served(*make_wheels(tmp_path))) as server:
        lacking = lock(server, "cuda")

    assert "no torch for cuda (there is one for cpu)" in lacking


def test_what_rocm_needs_comes_from_the_index_of_its_torch(tmp_path: Path) -> None:
    version, (_, sympy) = "2.13.0+rocm7.2", make_wheels(tmp_path)
    needs = ["triton-rocm==3.7", "sympy"]
    torch = zip_wheel(
        tmp_path / f"torch-{version}-py3-none-any.whl", TORCH, version=version, requires=needs
    )
    name = "triton_rocm-3.7-py3-none-any.whl"
    triton = zip_wheel(tmp_path / name, {}, name="triton_rocm", version="3.7")
    with (
        serving(served(torch, triton)) as torchs,
        serving(served(sympy)) as pypi,
        httpx.Client() as client,
    ):
        asked = f"{pypi.address}/simple", f"{torchs.address}/simple"
        indexes = engine_lock.Indexes(client, *asked)
        found, lacking = engine_lock.resolve("rocm", ["2.13.0"], indexes, ())
        read = read_lock(engine_lock.write("rocm", found, indexes).encode())

    assert not lacking
    assert read.variant == "rocm"
    assert {wheel.name for wheel in read.wheels()} == {"torch", "triton-rocm", "sympy"}


def test_what_an_index_lacks_is_named(tmp_path: Path) -> None:
    with serving(served(make_wheels(tmp_path)[0])) as server:
        assert "the index has no sympy>=1.13" in lock(server, "cpu")


def test_of_a_package_the_newest_that_is_wanted_is_taken(tmp_path: Path) -> None:
    older = [
        zip_wheel(tmp_path / f"sympy-{v}-py3-none-any.whl", {}, name="sympy", version=v)
        for v in ("1.12", "1.13.1", "2.0rc1")
    ]
    with serving(served(*make_wheels(tmp_path), *older)) as server:
        read = read_lock(lock(server, "cpu").encode())

    assert [wheel.version for wheel in read.wheels()] == ["2.13.0", "1.14.0"]
