"""Numbers and states as people read them."""

import re
from typing import Any

import pytest
from fake_backend import computer
from PySide6.QtGui import QFont, QFontMetrics, QTextLayout
from PySide6.QtWidgets import QApplication
from scripted_window import home, running_model

from potluck.api.values.schema import ModelState, Transfer
from potluck_app import wording


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (400, "0 kB"),
        (7_400_000, "7 MB"),
        (999_400_000, "999 MB"),
        (5.24e9, "5.2 GB"),
        (12e9, "12 GB"),
    ],
)
def test_sizes_have_at_most_one_decimal(count: float, text: str) -> None:
    assert wording.size(count) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(11.2e6, "90 Mbit/s"), (117.5e6, "940 Mbit/s"), (125e6, "1 Gbit/s"), (3.1e8, "2.5 Gbit/s")],
)
def test_links_are_told_in_bits(rate: float, text: str) -> None:
    assert wording.rate(rate) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (42, "42 s"), (150, "2 min"), (3900, "1 h 5 min")]
)
def test_durations_have_the_unit_that_matters(seconds: float, text: str) -> None:
    assert wording.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(850, "850"), (3128, "3.1k"), (32768, "32k"), (12_400, "12k"), (1_430_000, "1.4M")],
)
def test_token_counts_are_short(count: int, text: str) -> None:
    assert wording.thousands(count) == text


def test_names_are_listed_as_in_a_sentence() -> None:
    assert wording.listing(()) == ""
    assert wording.listing(("A",)) == "A"
    assert wording.listing(("A", "B", "C")) == "A, B and C"


def test_a_slow_link_is_called_one() -> None:
    slow = computer("Laptop", "2", bytes_per_s=11.2e6, rtt_ms=6.0)

    assert wording.link_line(slow) == "90 Mbit/s · 6.0 ms — slow link"
    assert wording.link_line(computer("Mac", "2", bytes_per_s=None, rtt_ms=12.4)) == "12 ms"


def test_sending_says_to_whom_and_how_long() -> None:
    transfers = tuple(
        Transfer(node_id=str(n), name=str(n), sent=n, total=2, eta_s=60.0 * n) for n in range(3)
    )
    model = ModelState(state="streaming", progress=0.42)

    line = wording.model_progress(model, transfers)

    assert line == "Sending layers to 0 and 1 · 42 % · 1 min left"


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ({"state": "preparing", "progress": 0.1}, "Preparing the model · 10 %"),
        ({"state": "loading", "message": "Loading on Mac"}, "Loading on Mac"),
        ({"state": "failed", "message": "Disk is full."}, "Disk is full."),
        ({"state": "ready"}, ""),
    ],
)
def test_every_phase_of_a_model_has_its_line(model: dict[str, Any], line: str) -> None:
    assert wording.model_progress(ModelState(**model), ()) == line


def test_the_code_is_read_out_in_two_halves() -> None:
    assert wording.spaced_code("427918") == wording.spaced_code("427 918") == "427 918"


def test_where_a_model_runs_names_computers_not_stages() -> None:
    assert wording.where_it_runs(home()) == "this computer"
    assert wording.where_it_runs(home(model=running_model())) == "here and there"


def test_a_peers_name_is_never_markup() -> None:
    assert wording.tip("<img src=x> & co") == "<qt>&lt;img src=x&gt; &amp; co</qt>"
    assert wording.tip("") == ""


@pytest.mark.parametrize(
    ("scheme", "text"),
    [
        ("f32", "32 bits"),
        ("bf16", "16 bits"),
        ("int8", "8 bits"),
        ("int4-offset", "4 bits"),
        ("int4-head8", "4 bits"),
        ("int4", "4 bits"),
        ("mxfp6", "mxfp6"),
    ],
)
def test_schemes_are_told_in_bits_or_by_their_name(scheme: str, text: str) -> None:
    assert wording.precision(scheme) == text


@pytest.mark.parametrize(("seconds", "text"), [(3600, "1 h"), (7199, "2 h"), (59.6, "1 min")])
def test_a_time_has_no_empty_part(seconds: float, text: str) -> None:
    assert wording.duration(seconds) == text


def test_a_very_long_word_may_go_on_in_the_next_line() -> None:
    path = "/home/anna/" + "models" * 10
    shown = wording.breakable(f"The model {path} cannot be read.")

    assert max(map(len, shown.replace("\u200b", " ").split())) == 6  # "cannot"
    assert shown.replace("\u200b", "") == f"The model {path} cannot be read."
    assert wording.breakable("Tastaturkurzbefehle ändern") == "Tastaturkurzbefehle ändern"


@pytest.mark.qt
@pytest.mark.parametrize(
    "text",
    [
        "7.9 tokens/s · 118 tokens · 1.2 s to first token",
        "It takes about 8.2 tokens/s for one user.",
        "7,9 Token/s · 118 Token · 1,2 s bis zum ersten Token",
        "Qwen3 8B  ·  3.4 GB of 12 GB at 420 Mbit/s, 62 % in 40 s",
    ],
)
def test_no_line_begins_with_a_dot_or_a_unit(qapp: QApplication, text: str) -> None:
    widths = range(60, QFontMetrics(QFont()).horizontalAdvance(text), 3)

    assert any(_begins_badly(text, width) for width in widths)
    assert not any(_begins_badly(wording.together(text), width) for width in widths)


def _begins_badly(text: str, width: int) -> bool:
    """Whether a line of a text that wraps at a width in pixels begins with what belongs to the line before."""
    layout, starts = QTextLayout(text, QFont()), list[int]()
    layout.beginLayout()
    while (line := layout.createLine()).isValid():
        line.setLineWidth(width)
        starts.append(line.textStart())
    layout.endLayout()
    return any(_BELONGS_BEFORE.match(text, start) for start in starts[1:])


def _lines(qapp: QApplication, text: str, width: int) -> list[str]:
    layout = QTextLayout(text, QFont())
    layout.beginLayout()
    while (line := layout.createLine()).isValid():
        line.setLineWidth(width)
    layout.endLayout()
    lines = [layout.lineAt(number) for number in range(layout.lineCount())]
    return [text[each.textStart() : each.textStart() + each.textLength()] for each in lines]


@pytest.mark.qt
@pytest.mark.parametrize(
    ("text", "never"),
    [
        ("More is in /home/anna/.local/state/potluck.", r"(^|\s)/$"),
        (
            "4.0 billion parameters · licence apache-2.0 · from Qwen",
            r"from\s*$|^Qwen",
        ),
        ("Living-room PC and Gaming PC connected · 1 waiting", r"1\s*$|^waiting"),
        ("Make a token under huggingface.co/settings/tokens, please", r"setti$|^ngs"),
    ],
)
def test_lines_end_where_a_person_would_end_them(qapp: QApplication, text: str, never: str) -> None:
    shown = wording.breakable(wording.together(text))
    widths = range(180, QFontMetrics(QFont()).horizontalAdvance(text) + 40, 3)

    lines = [line.strip("\u200b\u2060 ") for w in widths for line in _lines(qapp, shown, w)]

    assert len(lines) > len(widths)
    bad = {line for line in lines if re.search(never, line)} - {"/"}
    assert not {line for line in bad if line != text}


_BELONGS_BEFORE = re.compile(r"·|[kMG]B|s\b|%|tok/|[Tt]okens?/s|tokens ·|Mbit")
