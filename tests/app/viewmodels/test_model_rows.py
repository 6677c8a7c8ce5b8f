"""What is said of each model and each download."""

from typing import Any

import pytest
from fake_library import FIT, TOO_BIG, model

from potluck.api.values.hub import Download, DownloadState, Fit, Speed, Variant
from potluck.api.values.schema import ModelEntry
from potluck_app.viewmodels.model_rows import (
    download_row,
    hub_row,
    hub_title,
    model_rows,
    short_fit,
)

GB = 10**9
RANGE = Fit(fits=True, speed=Speed(low=8.4, high=14.2))
SLOW = Fit(fits=True, speed=Speed(low=1.25, high=1.25))


def entry(name: str = "Qwen/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M", **changes: Any) -> ModelEntry:
    values: dict[str, Any] = {"path": f"/m/{name}", "nbytes": 5 * GB, "fit": FIT, **changes}
    return ModelEntry(name=name, **values)


def download(state: DownloadState, **changes: Any) -> Download:
    values: dict[str, Any] = {"done": 1 * GB, "total": 4 * GB, **changes}
    return Download(id="d1", model="Qwen/Qwen3-8B-GGUF", variant="Q4_K_M", state=state, **values)


def test_the_model_in_use_comes_first_and_what_does_not_fit_last() -> None:
    rows = model_rows(
        (entry("big", fit=TOO_BIG), entry("b"), entry("a"), entry("used", current=True))
    )

    assert [row.name for row in rows] == ["used", "a", "b", "big"]
    assert [row.badge[0] for row in rows] == ["In use", *2 * ["Fits this computer"], "Too big"]
    assert [row.can_be_used for row in rows] == [True, True, True, False]


def test_a_model_says_its_size_on_each_computer_and_where_it_was_found() -> None:
    (row,) = model_rows((entry(parameters=8_200_000_000, source="ollama", held={"Attic": 2 * GB}),))

    assert row.name == "Qwen3-8B-Q4_K_M"
    assert row.facts == "8.2 billion parameters · 5 GB here · 2 GB on Attic · Found in Ollama"
    assert row.fit == FIT.text


def test_a_model_that_cannot_be_run_says_why() -> None:
    (row,) = model_rows((entry(fit=None, problem="Mamba is not known."),))

    assert (row.problem, row.badge[0]) == ("Mamba is not known.", "Cannot be used")
    assert not row.can_be_used


@pytest.mark.parametrize(
    ("fit", "text"),
    [
        (None, ""),
        (Fit(), ""),
        (FIT, "about 11 tokens/s"),
        (RANGE, "8 to 14 tokens/s"),
        (SLOW, "about 1.2 tokens/s"),
        (Fit(fits=True), "fits"),
        (TOO_BIG, "needs 8 GB more"),
    ],
)
def test_a_fit_in_few_words(fit: Fit | None, text: str) -> None:
    assert short_fit(fit) == text


def test_a_model_of_the_hub_says_what_the_best_form_is() -> None:
    row = hub_row(model(), (), None)

    assert row.title == "tiny"
    assert row.facts == (
        "8.2 billion parameters · Q4_K_M, 5 GB · licence apache-2.0 · from anna · 42 downloads"
    )
    assert (row.can_download, row.path, row.variants) == (True, None, ())


def test_a_model_that_a_search_found_has_its_form_chosen_later() -> None:
    found = model(variants=(), best=None, fit=None)

    assert not hub_row(found, (), None).can_download
    looked = hub_row(found, (), model())
    assert looked.can_download
    assert [(v.name, v.is_best) for v in looked.variants] == [("Q8_0", False), ("Q4_K_M", True)]


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("anna/tiny-GGUF/tiny-q4_k_m", Variant(name="Q4_K_M", format="gguf", nbytes=1)),
        ("anna/tiny-GGUF", Variant(name="safetensors", format="safetensors", nbytes=1)),
    ],
)
def test_a_form_that_is_here_is_not_downloaded_again(name: str, variant: Variant) -> None:
    known = model(variants=(variant,), best=variant.name)

    assert hub_row(known, (entry(name),), None).path == f"/m/{name}"
    assert hub_row(known, (entry("anna/other/x"),), None).path is None


def test_a_download_says_how_many_come_before_it() -> None:
    third = Download(
        id="3", model="a/b", variant="Q4", state="queued", done=0, total=4 * 10**9, place=2
    )

    assert download_row(third).line == "Waits for 2 downloads before it · 4 GB"


@pytest.mark.parametrize(
    ("state", "line", "can_pause", "can_resume"),
    [
        ("queued", "Waits for the download before it · 4 GB", True, False),
        ("running", "1 GB of 4 GB · 20 MB/s · 3 min left", True, False),
        ("paused", "Paused · 1 GB of 4 GB", False, True),
        ("failed", "The download failed.", False, True),
        ("done", "Downloaded · 4 GB", False, False),
    ],
)
def test_a_download_says_how_far_it_is(
    state: DownloadState, line: str, can_pause: bool, can_resume: bool
) -> None:
    row = download_row(download(state, bytes_per_s=20e6, eta_s=180.0))

    assert row.title == "Qwen3-8B (Q4_K_M)"
    assert row.line == line
    assert row.fraction == (1.0 if state == "done" else 0.25)
    assert (row.can_pause, row.can_resume) == (can_pause, can_resume)


def test_a_download_without_the_internet_goes_on_by_itself() -> None:
    row = download_row(download("offline", message="The Hub cannot be reached."))

    assert row.line == "The Hub cannot be reached. It goes on by itself · 1 GB of 4 GB"
    assert row.can_pause


def test_the_short_name_of_a_repository() -> None:
    assert [hub_title(name) for name in ("a/B-GGUF", "a/B-gguf", "B")] == ["B", "B", "B"]
