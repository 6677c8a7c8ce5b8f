"""The pictures can be taken again: every screen and state, with sheets that show them."""

import subprocess
import sys
from pathlib import Path

import pytest
from PySide6.QtGui import QIcon, QImage, QPixmap
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QWidget
from pytestqt.qtbot import QtBot
from screenshots.contrast import contrast
from screenshots.faults import faults
from screenshots.scenes import SCENES

from potluck_app.resources import asset
from potluck_app.views.widgets.boxes import hbox, vbox

HANG_S = 600  # ends a hang: all pictures take a minute, and some minutes on a busy machine

pytestmark = [pytest.mark.qt, pytest.mark.slow, pytest.mark.timeout(HANG_S + 60)]

# Pages, menus, dialogs and what has colours of its own. A picture takes a third of a second, and of the other scenes
# each is drawn in one theme.
IN_BOTH = (
    "first",
    "chat",
    "chat-rich",
    "chat-formulas",
    "chat-list-menu",
    "chat-options",
    "chat-failed",
    "cluster",
    "cluster-streaming",
    "cluster-add",
    "cluster-doctor",
    "models-here",
    "models-discover",
    "settings",
    "worker",
    "tray",
    "model-opened",
)
SCRIPT = Path(__file__).parents[2] / "installers" / "screenshots"
LANGUAGES = sorted(file.stem for file in asset("languages").glob("*.json"))


def take(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, folder, *words],
        timeout=HANG_S,
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(("theme", "first"), [("light", 0), ("dark", 1)])
def test_every_screen_is_drawn_and_pages_in_both_themes(
    tmp_path: Path, theme: str, first: int
) -> None:
    scenes = {*IN_BOTH, *list(SCENES)[first::2]}

    words = ("--scales", "100", "--widths", "1180", "--themes", theme, "--only", *sorted(scenes))
    result = take(tmp_path, *words)

    assert result.returncode == 0, result.stderr
    assert (
        result.stdout.splitlines()[:-1] == []
    )  # what is cut, sticks out or is unlike those beside it
    sheets = {path.stem for path in tmp_path.glob("sheet-*.png")}
    assert {f"sheet-{theme}-100-1180-1", f"sheet-{theme}-100-others-1"} <= sheets
    for scene in scenes:
        (path,) = tmp_path.glob(f"{scene}-{theme}-100-*.png")
        picture = QImage(str(path))
        corner = picture.pixelColor(2, 2).lightness()
        assert corner > 200 if theme == "light" else corner < 60, scene
        places = range(0, min(picture.width(), picture.height()), 4)
        assert len({picture.pixel(x, y) for x in places for y in places}) > 20, scene


def test_a_button_with_an_icon_beside_one_without_is_named(qtbot: QtBot) -> None:
    row, pixmap = QWidget(), QPixmap(16, 16)
    qtbot.addWidget(row)
    layout = QHBoxLayout(row)
    for button in (QPushButton(QIcon(pixmap), "Add"), QPushButton("Cancel"), QPushButton("Help")):
        button.setFixedHeight(32)
        layout.addWidget(button)
    row.show()

    assert faults(row) == [
        "Add: has an icon, and 'Cancel' beside it has none",
        "Add: has an icon, and 'Help' beside it has none",
    ]


def test_buttons_of_unequal_height_in_a_row_are_named(qtbot: QtBot) -> None:
    row = QWidget()
    qtbot.addWidget(row)
    tall = QPushButton("Save")
    tall.setFixedHeight(60)
    hbox(tall, QPushButton("Cancel"), parent=row)
    row.show()

    assert faults(row) == ["Save: is not as high as 'Cancel' beside it"]


def test_widgets_that_lie_over_each_other_are_named(qtbot: QtBot) -> None:
    page = QWidget()
    qtbot.addWidget(page)
    page.resize(300, 100)
    for text, x in (("Name", 0), ("Address", 20), ("Key", 200)):
        label = QLabel(text, page)
        label.setGeometry(x, 0, 60, 20)
    page.show()

    assert faults(page) == ["Name: overlaps 'Address'"]


def test_a_card_with_room_between_its_lines_is_named(qtbot: QtBot) -> None:
    card = QFrame()
    card.setProperty("card", "true")
    card.setObjectName("card")
    text = QLabel("Some words that go on in the next line. " * 3)
    text.setWordWrap(True)
    vbox(text, parent=card)
    window = QWidget()
    qtbot.addWidget(window)
    card.setParent(window)
    window.resize(300, 400)
    card.setGeometry(0, 0, 300, 100 + text.heightForWidth(300))
    window.show()
    assert faults(window) == ["card: is higher than what is in it"]

    card.setGeometry(0, 0, 300, text.heightForWidth(300))
    assert faults(window) == []


@pytest.mark.parametrize(("color", "is_pale"), [("#16181D", False), ("#C8CCD4", True)])
def test_text_that_is_too_pale_is_named(qtbot: QtBot, color: str, is_pale: bool) -> None:
    page = QWidget()
    qtbot.addWidget(page)
    text = QLabel("Ready to join")
    text.setObjectName("state")
    text.setStyleSheet(f"color: {color}; background: #FAFAFB")
    off = QPushButton("Add")
    off.setEnabled(False)  # what is off may be pale
    vbox(text, off, parent=page)
    page.show()

    found = faults(page, page.grab().toImage())

    assert [line.partition(": has a contrast of ")[0] for line in found] == ["state"] * is_pale


def test_black_on_white_has_the_highest_contrast_and_one_colour_the_lowest() -> None:
    picture = QImage(20, 20, QImage.Format.Format_RGB32)
    picture.fill(0xFFFFFF)
    assert contrast(picture) == pytest.approx(1)

    for x in range(4):
        picture.setPixel(x, 5, 0x000000)

    assert contrast(picture) == pytest.approx(21)


def test_each_width_and_scale_has_a_picture_of_its_size(tmp_path: Path) -> None:
    take(tmp_path, "--only", "chat", "--themes", "dark", "--widths", "480", "1920")

    sizes = {path.stem: QImage(str(path)).width() for path in tmp_path.glob("chat-*.png")}
    assert sizes == {
        "chat-dark-100-480": 480,
        "chat-dark-100-1920": 1920,
        "chat-dark-150-480": 720,
        "chat-dark-150-1920": 2880,
    }


def test_the_first_minute_is_an_animation_that_a_page_can_show(tmp_path: Path) -> None:
    result = take(tmp_path, "--film")

    assert result.returncode == 0, result.stderr
    film = tmp_path / "first-minute.png"
    assert QImage(str(film)).size() == QImage(str(tmp_path / "first-light-100-1180.png")).size()
    assert film.read_bytes().count(b"fcTL") == 8  # as many frames as there are scenes
    assert film.stat().st_size < 2_000_000


@pytest.mark.parametrize("language", LANGUAGES)
def test_longer_words_of_a_language_are_not_cut_in_a_narrow_window(
    tmp_path: Path, language: str
) -> None:
    scenes = (
        "first",
        "chat-suggestion",
        "chat-waiting",
        "engine-failed",
        "cluster",
        "cluster-nothing-found",
        "cluster-doctor",
    )
    scenes = (*scenes, "models-found", "models-token-wrong", "settings", "worker-engine")
    scenes = (*scenes, "chat-too-long", "invitation", "settings-programs")
    words = ("--scales", "100", "--themes", "light", "--widths", "480", "--language", language)

    result = take(tmp_path, *words, "--only", *scenes)

    assert result.stdout.splitlines()[:-1] == []  # the last line says where the pictures are


def test_windows_and_dialogs_fit_on_a_small_screen(tmp_path: Path) -> None:
    words = ("--screen", "1366x768", "--scales", "150", "--themes", "light", "--widths", "1180")

    take(tmp_path, *words, "--only", "chat", "cluster-doctor-many", "worker-engine")

    pictures = [p for p in tmp_path.glob("*.png") if not p.name.startswith("sheet-")]
    sizes = {path.stem.split("-light")[0]: QImage(str(path)).size() for path in pictures}
    assert len(sizes) == 3
    assert all(size.width() <= 1366 and size.height() <= 768 for size in sizes.values())
    assert sizes["chat"].width() > 1300


def test_each_scene_says_what_it_shows(tmp_path: Path) -> None:
    result = take(tmp_path, "--list")

    lines = [line.partition(": ") for line in result.stdout.splitlines()]
    assert len(lines) > 100
    assert len({says for _, _, says in lines}) == len(lines)
    assert all(says[0].isupper() and says.endswith(".") for _, _, says in lines)


def test_a_scene_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = take(tmp_path, "--only", "cellar")

    assert result.returncode == 1
    assert result.stderr.startswith("There is no scene cellar. These are there: first, ")
