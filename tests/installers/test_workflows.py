"""What the workflows call is there, and what they publish is what is built."""

import re
import shlex
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from installer import INSTALLERS, load
from native import linux
from native.project import machine, package_name

ROOT = INSTALLERS.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SYSTEMS = {"ubuntu": "linux", "macos": "macos", "windows": "windows"}


def jobs(workflow: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values())


def steps() -> list[dict[str, Any]]:
    return [step for workflow in WORKFLOWS for job in jobs(workflow) for step in job["steps"]]


def release_job() -> dict[str, Any]:
    release = next(path for path in WORKFLOWS if path.stem == "release")
    return next(job for job in jobs(release) if "matrix" in job.get("strategy", {}))


def commands() -> list[list[str]]:
    """Each command, its variables replaced by what the step or the matrix gives them."""
    systems = [each["system"] for each in release_job()["strategy"]["matrix"]["include"]]
    values = {"SYSTEM": sorted(set(systems)), "TAG": ["v0.1.0"]}
    found: list[list[str]] = []
    for step in filter(lambda step: "run" in step, steps()):
        words = shlex.split(step["run"])
        choices = [values[word[1:]] if word.startswith("$") else [word] for word in words]
        found += [list(each) for each in product(*choices)]
    return found


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_step_is_a_script_that_is_there_and_knows_its_words(command: list[str]) -> None:
    python, script, *words = command
    assert python == "python"
    assert (ROOT / script).is_file()
    match Path(script).stem:
        case "ci":
            step, *rest = words
            assert step in load("ci").STEPS
            assert step == "tests" or not rest
        case "build":
            assert load("build")._parser().parse_args(words).what == words[0]
        case "artifacts":
            load("release")
            said = str(load("artifacts").__doc__)
            shown = re.findall(r"artifacts\.py (\S+)((?: [A-Z]+)*) ", said)
            counts = {name: len(places.split()) for name, places in shown}
            assert counts[words[0]] == len(words) - 1
        case other:
            pytest.fail(f"Nothing here knows the words of {other}.py.")


def test_a_shell_variable_is_for_bash_alone() -> None:
    """PowerShell, which Windows has otherwise, reads "$NAME" as a variable of its own: empty."""
    using = [step for step in steps() if "$" in re.sub(r"\$\{\{.*?\}\}", "", step.get("run", ""))]
    assert using
    for step in using:
        assert step.get("shell") == "bash"
        names = re.findall(r"\$(\w+)", step["run"])
        assert set(names) <= step["env"].keys()


def test_secrets_are_given_to_a_protected_environment_alone() -> None:
    with_secrets = [job for path in WORKFLOWS for job in jobs(path) if "secrets." in str(job)]
    assert {job.get("environment") for job in with_secrets} == {"release"}


def test_what_is_built_is_uploaded_and_nothing_else() -> None:
    upload = next(s for s in release_job()["steps"] if "upload-artifact" in s.get("uses", ""))
    patterns = upload["with"]["path"].split()
    taken = [pattern for pattern in patterns if not pattern.startswith("!")]
    left = [pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")]
    packages = [
        linux.deb_name(),
        package_name("linux", ".tar.xz"),
        package_name("linux", ".AppImage"),
        package_name("macos", ".dmg"),
        package_name("windows", ".exe"),
    ]

    def is_uploaded(name: str) -> bool:
        path = f"dist/{name}"
        return any(fnmatch(path, p) for p in taken) and not any(fnmatch(path, p) for p in left)

    assert all(map(is_uploaded, packages))
    assert not any(is_uploaded(f"{name}.sha256") for name in packages)
    assert not is_uploaded("work")
    for pattern in taken:  # a pattern for which there is nothing has the name of something else
        assert any(fnmatch(f"dist/{name}", pattern) for name in packages)


def test_a_package_is_built_where_its_system_and_its_tools_are() -> None:
    job = release_job()
    for each in job["strategy"]["matrix"]["include"]:
        assert SYSTEMS[each["os"].partition("-")[0]] == each["system"]
    runs = [step["run"] for step in job["steps"] if "run" in step]
    assert runs.index("python installers/ci.py packaging") < next(
        at for at, run in enumerate(runs) if "build.py" in run
    )


def test_what_the_readme_names_for_a_build_is_installed() -> None:
    named = (INSTALLERS / "README.md").read_text(encoding="utf-8")
    found = re.search(r"\(Debian: `([^`]+)`\)", named)
    assert found is not None
    assert set(found[1].split()) <= set(load("ci").PACKAGED_LIBRARIES.values())


@pytest.mark.skipif(machine() not in ("x86_64", "aarch64"), reason="no package is made for it")
def test_the_deb_has_the_name_that_debian_gives_it() -> None:
    assert re.fullmatch(r"potluck_[\d.a-z+~]+_(amd64|arm64)\.deb", linux.deb_name())
