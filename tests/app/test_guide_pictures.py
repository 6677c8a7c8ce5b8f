"""The user's guide, app/GUIDE.md: its pictures are scenes, and what it quotes is said by the window."""

import json
import re
from pathlib import Path
from typing import Final

import pytest
from PIL import Image
from screenshots import guide
from screenshots.scenes import SCENES

ROOT: Final = Path(__file__).parents[2]
TEXT: Final = (ROOT / "app" / "GUIDE.md").read_text(encoding="utf-8")
PICTURES: Final = re.findall(r"!\[(.*)\]\((.*)\)", TEXT)
MOST: Final = 2_500_000  # bytes of all pictures: whoever clones the project downloads them

pytestmark = pytest.mark.qt


def test_each_picture_is_there_once_in_the_order_of_the_list() -> None:
    paths = [(ROOT / "app" / path).resolve() for _, path in PICTURES]

    assert [path.stem for path in paths] == list(guide.SCENES)
    assert all(path.parent == guide.FOLDER and path.is_file() for path in paths)


def test_each_picture_in_the_folder_is_in_the_guide() -> None:
    assert {path.name for path in guide.FOLDER.iterdir()} == {f"{s}.png" for s in guide.SCENES}


def test_each_picture_is_a_scene_and_is_described_by_its_sentence() -> None:
    assert [says for says, _ in PICTURES] == [SCENES[name].says for name in guide.SCENES]


def test_no_dialog_for_files_is_shown() -> None:
    assert not {"chat-export", "chat-import", "models-folder"} & set(guide.SCENES)


def test_the_pictures_are_small() -> None:
    assert sum(path.stat().st_size for path in guide.FOLDER.iterdir()) < MOST


def test_a_picture_has_few_colours_and_those_of_other_scenes_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guide, "SCENES", ("chat",))
    taken, folder = tmp_path / "taken", tmp_path / "guide"
    for each in (taken, folder):
        each.mkdir()
    (folder / "cellar.png").touch()
    Image.linear_gradient("L").convert("RGB").save(taken / "chat-light-100-980.png")

    nbytes = guide.write_pictures(taken, folder, "light-100")

    assert [path.name for path in folder.iterdir()] == ["chat.png"]
    assert nbytes == (folder / "chat.png").stat().st_size
    with Image.open(folder / "chat.png") as picture:
        assert picture.mode == "P"


def test_a_picture_that_was_not_taken_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="0 pictures of first are in"):
        guide.write_pictures(tmp_path, tmp_path / "guide", "light-100")


def test_what_is_bold_is_said_by_the_window() -> None:
    texts = json.loads((ROOT / "assets" / "languages" / "de.json").read_bytes())["texts"]
    said = {text.replace("{#}", "…").replace("{}", "…") for text in texts}

    assert [words for words in re.findall(r"\*\*(.+?)\*\*", TEXT) if words not in said] == []


def test_links_within_the_guide_lead_to_its_chapters() -> None:
    titles = re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}

    assert set(re.findall(r"\]\(#(.*?)\)", TEXT)) <= anchors
