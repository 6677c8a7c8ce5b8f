"""Locks are read as strangers' files, and name what suits a computer."""

from pathlib import Path

import pytest
from packaging.tags import Tag, compatible_tags, cpython_tags
from tiny_wheels import lock_text, make_wheels

from potluck.errors import EngineError, IntegrityError
from potluck.runtime.choice import Machine, choose, locks_folder, read_locks
from potluck.runtime.lock import Environment, read_lock


def machine(
    system="Linux", processor="x86_64", *, gpus=None, amd=(), python=(3, 12), glibc=39
) -> Machine:
    platforms = {
        "Linux": [f"manylinux_2_{minor}_{processor}" for minor in range(glibc, 4, -1)]
        + [f"manylinux2014_{processor}"],
        "Windows": ["win_amd64"],
        "Darwin": ["macosx_14_0_arm64", "macosx_11_0_arm64"],
    }[system]
    version = ".".join(map(str, python))
    markers = {
        "sys_platform": {"Linux": "linux", "Windows": "win32", "Darwin": "darwin"}[system],
        "platform_machine": processor,
        "platform_system": system,
        "python_version": version,
        "python_full_version": f"{version}.1",
    }
    tags = [
        *cpython_tags(python, platforms=platforms),
        *compatible_tags(python, "cp312", platforms),
    ]
    return Machine(
        system=system,
        processor=processor,
        gpus=gpus,
        amd=amd,
        environment=Environment(markers=markers, tags=tags),
    )


def damaged(tmp_path: Path, old: str, new: str) -> bytes:
    text = lock_text(make_wheels(tmp_path))
    assert old in text
    return text.replace(old, new, 1).encode()


def test_a_lock_names_its_wheels(tmp_path) -> None:
    lock = read_lock(lock_text(make_wheels(tmp_path), url="https://files.example/").encode())

    assert lock.variant == "cpu"
    assert [wheel.name for wheel in lock.wheels()] == ["torch", "sympy"]
    assert lock.wheels()[0].url == "https://files.example/torch-2.13.0-py3-none-any.whl"


@pytest.mark.parametrize(
    "name",
    [
        "../torch-2.13.0-py3-none-any.whl", "/torch-2.13.0-py3-none-any.whl", "torch-2.13.0.tar.gz",
        "..\\\\torch-2.13.0-py3-none-any.whl", "torch-9.9-py3-none-any.whl", "evil-2.13.0-py3-none-any.whl",
        "torch-2.13.0-py3-none-any.whl\\u0000.exe", "torch-2.13.0-a/../../b-py3-none-any.whl", "",
    ],
)  # fmt: skip
def test_a_hostile_name_is_refused(tmp_path, name: str) -> None:
    text = damaged(tmp_path, 'name = "torch-2.13.0-py3-none-any.whl"', f'name = "{name}"')

    with pytest.raises(IntegrityError):
        read_lock(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("size = ", "size = -"),
        ("size = ", "size = 99999999999"),
        ('sha256 = "', 'sha256 = "../'),
        ("sha256", "md5"),
        ('name = "torch"', 'name = "../torch"'),
        ('lock-version = "1.0"', 'lock-version = "2.0"'),
        ("[tool.potluck]", "[tool.other]"),
        ("[[packages]]", "[[packages"),
        ('version = "2.13.0"', 'version = "2.13.0"\nmarker = "os_name =="'),
    ],
)
def test_what_a_lock_must_not_say_is_refused(tmp_path, old: str, new: str) -> None:
    with pytest.raises(IntegrityError, match="Install Potluck again"):
        read_lock(damaged(tmp_path, old, new))


@pytest.mark.parametrize(
    "url", ["http://files.example/", "file:///etc/", "ftp://a/", "https:///a", "x"]
)
def test_an_address_that_is_not_https_is_refused(tmp_path, url: str) -> None:
    with pytest.raises(IntegrityError):
        read_lock(lock_text(make_wheels(tmp_path), url=url).encode())


def test_a_lock_of_many_megabytes_is_not_read() -> None:
    with pytest.raises(IntegrityError):
        read_lock(b"#" * (5 << 20))


def test_an_intel_mac_and_windows_on_arm_have_none() -> None:
    with pytest.raises(EngineError, match="Intel"):
        choose({}, machine("Darwin", "x86_64"))
    with pytest.raises(EngineError, match="Windows on Arm"):
        choose({}, machine("Windows", "ARM64"))


def test_a_computer_that_no_lock_is_for_hears_what_to_do() -> None:
    with pytest.raises(EngineError, match="--from FOLDER"):
        choose({}, machine())


LOCKS = read_locks(locks_folder())
NEW_DRIVER, OLD_DRIVER = "580.65, 8.9\n", "535.12, 8.9\n"


def test_every_lock_of_the_release_can_be_read() -> None:
    assert {"cuda", "metal"} <= LOCKS.keys()
    for lock in LOCKS.values():
        assert all(w.url and w.url.startswith("https://") for w in lock.wheels())


@pytest.mark.parametrize("python", [(3, 11), (3, 12), (3, 13)])
def test_a_mac_gets_metal(python) -> None:
    choice = choose(LOCKS, machine("Darwin", "arm64", python=python))

    assert choice.variant == "metal"
    assert {wheel.name for wheel in choice.wheels} >= {"torch", "sympy", "mpmath", "networkx"}
    assert not {wheel.name for wheel in choice.wheels} & {"numpy", "jinja2", "filelock", "fsspec"}


@pytest.mark.parametrize("python", [(3, 11), (3, 12), (3, 13)])
def test_a_linux_with_a_new_driver_gets_cuda(python) -> None:
    choice = choose(LOCKS, machine(gpus=NEW_DRIVER, python=python))

    assert choice.variant == "cuda"
    assert "triton" in {wheel.name for wheel in choice.wheels}
    torch = next(wheel for wheel in choice.wheels if wheel.name == "torch")
    assert Tag(f"cp3{python[1]}", f"cp3{python[1]}", "manylinux_2_28_x86_64") in torch.tags


def test_a_gpu_with_an_old_driver_is_told_of(tmp_path) -> None:
    locks = {"cpu": read_lock(lock_text(make_wheels(tmp_path)).encode())}

    assert "driver 580" in choose(locks, machine(gpus=OLD_DRIVER)).note
    assert choose(locks, machine()).note == ""


def test_a_gpu_without_a_listed_build_is_told_of() -> None:
    choice = choose({"cpu": LOCKS["cpu"]}, machine("Windows", "AMD64", gpus=NEW_DRIVER))

    assert choice.variant == "cpu"
    assert "lists no PyTorch with CUDA" in choice.note


def test_an_amd_gpu_that_could_compute_is_told_of_and_uses_rocm_once_it_is_listed(tmp_path) -> None:
    listed = read_lock(lock_text(make_wheels(tmp_path), variant="rocm").encode())
    with_gpu = machine(amd=("gfx1036", "gfx1101"), python=(3, 13))

    assert "lists no PyTorch with ROCm" in choose(LOCKS, with_gpu).note
    choice = choose({**LOCKS, "rocm": listed}, with_gpu)
    assert (choice.variant, choice.note) == ("rocm", "")


def test_rocm_is_not_for_a_gpu_that_it_is_not_built_for_nor_beside_a_new_one_of_nvidia(
    tmp_path,
) -> None:
    listed = read_lock(lock_text(make_wheels(tmp_path), variant="rocm").encode())
    locks = {**LOCKS, "rocm": listed}

    unknown = choose(locks, machine(amd=("gfx1036",), python=(3, 13)))
    assert (unknown.variant, unknown.note) == ("cpu", "")
    assert choose(locks, machine(gpus=NEW_DRIVER, amd=("gfx1101",))).variant == "cuda"
    assert choose(locks, machine(gpus=OLD_DRIVER, amd=("gfx1101",))).note == ""


def test_an_old_linux_has_no_wheel() -> None:
    with pytest.raises(EngineError, match="lists no engine"):
        choose({"cuda": LOCKS["cuda"]}, machine(gpus=NEW_DRIVER, glibc=24))
