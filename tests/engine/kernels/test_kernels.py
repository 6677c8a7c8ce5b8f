"""Which kernels a computer gets."""

import os
import subprocess
import sys

import pytest
import torch
from kernel_paths import BEST, every_generated, random
from torch import Tensor

from potluck.engine.kernels import best_kernels
from potluck.engine.kernels.called.generated import GeneratedKernels, host_paths
from potluck.engine.kernels.paths import PATHS, Path
from potluck.engine.sampling.head import softcap
from potluck.errors import UsageError


def test_the_best_path_is_taken_and_another_can_be_asked_for() -> None:
    best, last = host_paths()[0], host_paths()[-1]

    assert best_kernels().name == best.name
    assert best_kernels(path=last.name).name == last.name == "generic"


def test_threads_are_the_callers_choice() -> None:
    kernels = best_kernels(threads=2)

    assert isinstance(kernels, GeneratedKernels)
    assert kernels.shares > 1
    kernels.close()


def test_a_path_that_cannot_run_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"cannot run the kernels called mmx\. It can run: .*generic"
    ):
        best_kernels(path="mmx")


def test_where_no_program_may_make_code_torch_computes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a macOS app without the entitlement, whose process would be killed at the first call."""

    def refuse() -> None:
        raise OSError(1, "Failed to allocate executable memory")

    monkeypatch.setattr("llvmlite.binding.check_jit_execution", refuse)

    assert best_kernels().name == "reference"
    assert "executable memory" in caplog.text


@pytest.mark.parametrize(
    ("features", "name"),
    [(set(), "neon"), ({"dotprod"}, "dotprod"), ({"dotprod", "i8mm"}, "i8mm")],
)
def test_an_arm_processor_has_what_its_system_says_where_llvm_does_not_ask(
    monkeypatch: pytest.MonkeyPatch, features: set[str], name: str
) -> None:
    monkeypatch.setattr("llvmlite.binding.get_process_triple", lambda: "aarch64-unknown-linux-gnu")
    monkeypatch.setattr(
        "llvmlite.binding.get_host_cpu_features", lambda: {"neon": True, "sve": False}
    )
    monkeypatch.setattr("llvmlite.binding.get_host_cpu_name", lambda: "generic")
    monkeypatch.setattr("potluck.engine.kernels.paths.arm_features", lambda: frozenset(features))

    assert host_paths()[0].name == name


def test_a_processor_of_another_kind_is_not_asked_for_features_of_arm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("llvmlite.binding.get_process_triple", lambda: "x86_64-unknown-linux-gnu")
    monkeypatch.setattr(
        "potluck.engine.kernels.paths.arm_features", lambda: pytest.fail("bits mean other things")
    )

    assert host_paths()[-1].name == "generic"


def test_the_best_path_and_the_one_for_any_processor_norm_and_gate_alike() -> None:
    x, weight = random(5, 70), random(70, seed=1)

    def computed(path: Path) -> list[Tensor]:
        kernels = GeneratedKernels(path)
        return [
            kernels.norm(x, weight, 1e-5),
            kernels.norm(x, weight, 1e-5, "layer"),
            kernels.norm(x, random(2, 70, seed=2), 1e-5, "biased layer"),
            kernels.gate(x, "silu"),
            kernels.gate(x, "gelu_pytorch_tanh"),
            kernels.gate(x, "relu2"),
            kernels.gate(x, "gelu_alone"),
            kernels.gate(x, "xielu", weight[:2].abs()),
            kernels.softcap(x, 1.5),
        ]

    for one, other in zip(computed(BEST), computed(PATHS[-1]), strict=True):
        assert torch.equal(one, other)


@every_generated
@pytest.mark.parametrize("width", [5, 64, 301])
def test_a_layer_norm_is_near_that_of_torch_also_far_from_zero(
    kernels: GeneratedKernels, width: int
) -> None:
    x, both = 10 + random(3, width), random(2, width, seed=1)
    weight, bias = both.double()

    plain, biased = (
        kernels.norm(x, both[0], 1e-5, "layer"),
        kernels.norm(x, both, 1e-5, "biased layer"),
    )

    for normed, added in ((plain, None), (biased, bias)):
        expected = torch.layer_norm(x.double(), (width,), weight, added, 1e-5)
        torch.testing.assert_close(normed, expected.float(), rtol=1e-5, atol=1e-5)


@every_generated
@pytest.mark.parametrize("shape", [(301,), (3, 301)])
def test_a_softcap_is_near_that_of_torch(kernels: GeneratedKernels, shape: tuple[int, ...]) -> None:
    logits = 20 * random(*shape)
    logits[..., 0], logits[..., 1] = torch.inf, -torch.inf

    capped = kernels.softcap(logits, 30.0)

    torch.testing.assert_close(capped, softcap(logits, 30.0), rtol=0, atol=1e-5)


WITHOUT_LLVMLITE = """
import sys
sys.modules["llvmlite"] = None
import torch
from potluck.engine.kernels import best_kernels
from potluck.model.formats import INT8
kernels = best_kernels()
packed, x = kernels.pack(torch.eye(32), INT8), kernels.quantise(torch.eye(32))
assert torch.allclose(kernels.multiply(packed, x), torch.eye(32), atol=1e-3)
print(kernels.name)
"""


@pytest.mark.slow
def test_without_llvmlite_torch_computes() -> None:
    """In a process of its own: here it is loaded."""
    process = subprocess.run(
        [sys.executable, "-c", WITHOUT_LLVMLITE],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert process.stdout.split() == ["reference"], process.stderr
