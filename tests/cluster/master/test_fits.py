"""How models fit on the computers of a home, of which nothing is asked for it."""

from collections.abc import Mapping

import pytest
from fake_cluster import FakeComputer, FakeComputers, run

from potluck.api.values.hub import Fit
from potluck.cluster.master.fits import FASTEST, SLOWEST, Fits
from potluck.cluster.master.kept import KeptMeasurements
from potluck.cluster.master.measurements import Measurements
from potluck.hub.variants import quantised_config
from potluck.ids import NodeId
from potluck.model.config import ModelConfig
from potluck.model.schemes import Scheme
from potluck.model.shapes.table import SHAPES

GB = 10**9


async def measure(
    measurements: Measurements, computers: FakeComputers, shape: str, scheme: Scheme
) -> None:
    config = SHAPES[shape]
    everyone = [computers.local, *computers.workers]
    await measurements.device_costs(everyone, config, ModelConfig.from_dict(config), scheme)
    await measurements.links.measure(computers.local, computers.workers)


def fit_of(
    computers: FakeComputers,
    shape: str,
    *,
    measured: tuple[tuple[str, Scheme], ...] = (),
    absent: Mapping[NodeId, str] | None = None,
    gone: FakeComputer | None = None,
    label: str | None = None,
) -> Fit:
    async def main() -> Fit:
        measurements = Measurements(kept=KeptMeasurements(None))
        for name, scheme in measured:
            await measure(measurements, computers, name, scheme)
        if gone is not None:
            computers.workers.remove(gone)
        calls = [len(c.calls) for c in (computers.local, *computers.workers)]
        config = SHAPES[shape] if label is None else quantised_config(SHAPES[shape], label)
        assert config is not None
        fit = await Fits(computers, measurements, lambda: absent or {}).of(config)
        assert calls == [len(c.calls) for c in (computers.local, *computers.workers)]
        return fit

    return run(main())


def test_model_that_fits_here_has_no_speed_until_something_was_measured():
    fit = fit_of(FakeComputers(FakeComputer("Desk", 1, memory=8 * GB)), "llama-1b")

    assert (fit.fits, fit.alone, fit.scheme, fit.speed) == (True, True, "bf16", None)
    assert fit.text == "Fits on this computer."


def test_measured_layers_give_the_speed_that_the_planner_predicts():
    desk = FakeComputer("Desk", 1, memory=8 * GB, ms=5.0)

    fit = fit_of(FakeComputers(desk), "llama-1b", measured=(("llama-1b", "bf16"),))

    assert fit.speed is not None
    assert fit.speed.low == fit.speed.high == pytest.approx(1000 / (16 * 5 + 5), rel=0.05)
    assert fit.text == "About 12 tokens/s on this computer."


def test_layers_of_another_model_give_a_cautious_range():
    desk = FakeComputer("Desk", 1, memory=40 * GB, ms=10.0)
    computers = FakeComputers(desk)

    own = fit_of(computers, "llama-8b", measured=(("llama-8b", "bf16"),)).speed
    other = fit_of(computers, "llama-8b", measured=(("llama-1b", "bf16"),)).speed

    assert own is not None
    assert other is not None
    # A layer of the 8b has 3.6 times the bytes of one of the 1b, which here takes the same time.
    assert other.high / other.low == pytest.approx(FASTEST / SLOWEST)
    assert other.high < own.low / 2


def test_speed_of_plain_numbers_says_nothing_about_packed_ones():
    desk = FakeComputer("Desk", 1, memory=8 * GB)
    computers = FakeComputers(desk)

    fit = fit_of(computers, "llama-8b", measured=(("llama-1b", "bf16"),), label="Q4_K_M")

    assert (fit.fits, fit.scheme, fit.speed) == (True, "int4-offset", None)


def test_small_layers_say_nothing_about_large_ones():
    desk = FakeComputer("Desk", 1, memory=40 * GB)
    computers = FakeComputers(desk)
    small = {**SHAPES["llama-1b"], "hidden_size": 64, "intermediate_size": 64, "vocab_size": 64}

    async def main() -> Fit:
        measurements = Measurements()
        await measurements.device_costs([desk], small, ModelConfig.from_dict(small), "bf16")
        return await Fits(computers, measurements).of(SHAPES["llama-8b"])

    assert run(main()).speed is None


def test_model_for_two_computers_names_them_and_says_that_one_is_too_small():
    desk, laptop = (FakeComputer(n, i, memory=2 * GB) for n, i in (("Desk", 1), ("Laptop", 2)))

    fit = fit_of(
        FakeComputers(desk, laptop), "llama-3b", measured=(("llama-3b", "int8"),), label="Q8_0"
    )

    assert (fit.fits, fit.alone, fit.computers) == (True, False, ("Desk", "Laptop"))
    assert "on Desk and Laptop. It does not fit on this computer alone." in fit.text


def test_model_that_does_not_fit_says_how_much_is_missing_and_what_to_do():
    desk = FakeComputer("Desk", 1, memory=4 * GB)

    fit = fit_of(FakeComputers(desk), "llama-70b")

    assert (fit.fits, fit.scheme) == (False, "int4")
    assert fit.missing > 30 * GB
    assert fit.text.startswith("Would fit with 4")
    assert fit.text.endswith(" GB more memory: add a computer.")


def test_memory_that_other_programs_have_is_advised_to_be_freed():
    desk = FakeComputer("Desk", 1, memory=4 * GB)  # of which other programs have as much

    fit = fit_of(FakeComputers(desk), "llama-8b", label="Q4_K_M")

    assert fit.fits is False
    assert "more memory: close other programs on Desk, or add a computer." in fit.text


def test_computer_whose_devices_are_not_known_yet_leaves_the_fit_open():
    desk = FakeComputer("Desk", 1)
    desk.devices = ()

    fit = fit_of(FakeComputers(desk), "llama-1b")

    assert fit.fits is None
    assert "not known yet" in fit.text


def test_absent_computer_that_would_help_is_named():
    desk = FakeComputer("Desk", 1, memory=3 * GB, ms=9.0)
    attic = FakeComputer("Attic", 2, memory=3 * GB, ms=3.0)

    fit = fit_of(
        FakeComputers(desk, attic),
        "llama-1b",
        measured=(("llama-1b", "bf16"),),
        gone=attic,
        absent={attic.node_id: "Attic"},
    )

    assert fit.one_more is not None
    assert fit.one_more.name == "Attic"
    assert fit.text == "About 7 tokens/s on this computer. About 19 with Attic."


def test_absent_computer_without_which_it_does_not_fit_is_named():
    desk, attic = (FakeComputer(n, i, memory=2 * GB) for n, i in (("Desk", 1), ("Attic", 2)))

    fit = fit_of(
        FakeComputers(desk, attic),
        "llama-3b",
        measured=(("llama-3b", "int4"),),
        label="Q8_0",
        gone=attic,
        absent={attic.node_id: "Attic"},
    )

    assert (fit.fits, fit.scheme) == (False, "int4")
    assert fit.text.endswith("It fits with Attic.")
