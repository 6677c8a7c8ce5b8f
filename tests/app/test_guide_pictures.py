"""The user's guides, app/GUIDE.md and GUIDE.de.md: their pictures are scenes, and what they quote is said by the window."""

import json
import re
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from PIL import Image
from screenshots import guide, readme
from screenshots.colours import in_few_colours
from screenshots.scenes import SCENES

ROOT: Final = Path(__file__).parents[2]
MOST: Final = (
    1_250_000  # bytes of the pictures of a guide: whoever clones the project downloads them
)

pytestmark = pytest.mark.qt


class Guide(NamedTuple):
    """A guide in one language."""

    language: str
    text: str
    pictures: list[tuple[str, Path]]  # what each shows, in words, and where it is

    @property
    def scenes(self) -> list[str]:
        return [path.stem for _, path in self.pictures]


def read(language: str, name: str) -> Guide:
    text = (ROOT / "app" / name).read_text(encoding="utf-8")
    found = re.findall(r"!\[(.*)\]\((.*)\)", text)
    return Guide(language, text, [(says, (ROOT / "app" / path).resolve()) for says, path in found])


ENGLISH: Final = read("en", "GUIDE.md")
GUIDES: Final = (ENGLISH, read("de", "GUIDE.de.md"))
each_guide = pytest.mark.parametrize("book", GUIDES, ids=lambda book: book.language)


@each_guide
def test_each_picture_is_there_once_in_the_order_of_the_list(book: Guide) -> None:
    assert book.scenes == [scene for scene in guide.SCENES if scene in book.scenes]
    folder = guide.FOLDERS[book.language]
    assert all(path.parent == folder and path.is_file() for _, path in book.pictures)


def test_the_english_guide_has_every_picture() -> None:
    assert ENGLISH.scenes == list(guide.SCENES)


@each_guide
def test_each_picture_in_the_folder_is_one_of_the_list(book: Guide) -> None:
    folder = guide.FOLDERS[book.language]
    assert {path.name for path in folder.iterdir()} <= {f"{s}.png" for s in guide.SCENES}


def test_each_picture_is_a_scene_and_is_described_by_its_sentence() -> None:
    assert [says for says, _ in ENGLISH.pictures] == [SCENES[name].says for name in guide.SCENES]


@each_guide
def test_each_picture_is_described_in_a_sentence_of_its_own(book: Guide) -> None:
    said = [says for says, _ in book.pictures]

    assert len(set(said)) == len(said) > 40
    assert all(says[0].isupper() and says.endswith(".") for says in said)


def test_no_dialog_for_files_is_shown() -> None:
    assert not {"chat-export", "chat-import", "models-folder"} & set(guide.SCENES)


@each_guide
def test_the_pictures_are_small(book: Guide) -> None:
    folder = guide.FOLDERS[book.language]
    assert sum(path.stat().st_size for path in folder.iterdir()) < MOST


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


def test_surfaces_keep_their_colour_and_so_does_what_few_pixels_have() -> None:
    ground, side, number = (250, 250, 251), (243, 244, 247), (245, 181, 68)
    picture = Image.new("RGB", (300, 200), ground)
    picture.paste(side, (0, 0, 60, 200))
    shades = Image.radial_gradient("L").resize((200, 100))
    picture.paste(Image.merge("RGB", (shades, shades.rotate(90), shades.rotate(180))), (80, 50))
    for x in range(3):
        picture.putpixel((70 + x, 5), number)

    few = in_few_colours(picture)

    assert few.mode == "P"
    shown = few.convert("RGB")
    assert [shown.getpixel(place) for place in ((299, 0), (0, 0), (71, 5))] == [
        ground,
        side,
        number,
    ]


def test_a_picture_that_was_not_taken_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="0 pictures first-light-100 are in"):
        guide.write_pictures(tmp_path, tmp_path / "guide", "light-100")


@each_guide
def test_what_is_bold_is_said_by_the_window(book: Guide) -> None:
    texts = json.loads((ROOT / "assets" / "languages" / "de.json").read_bytes())["texts"]
    words = texts if book.language == "en" else texts.values()
    said = {re.sub(r"\{[#=\d]?\}", "…", text) for text in words}

    assert [bold for bold in re.findall(r"\*\*(.+?)\*\*", book.text) if bold not in said] == []


@each_guide
def test_links_within_the_guide_lead_to_its_chapters(book: Guide) -> None:
    titles = re.findall(r"^#+ (.*)$", book.text, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}

    linked = set(re.findall(r"\]\(#(.*?)\)", book.text))
    assert len(linked) > 10
    assert linked <= anchors


def test_the_guides_have_the_same_chapters_and_tables() -> None:
    shapes = [re.findall(r"^(#+) |^(\|)---", book.text, re.MULTILINE) for book in GUIDES]

    assert shapes[0] == shapes[1]


def test_the_pictures_of_the_readme_are_those_that_it_shows(tmp_path: Path) -> None:
    shown = set(
        re.findall(r"assets/screenshots/([\w-]+\.png)", (ROOT / "README.md").read_text("utf-8"))
    )
    taken = tmp_path / "taken"
    taken.mkdir()
    for scene in readme.ALL:
        for theme in ("light", "dark"):
            Image.new("RGB", (40, 30)).save(taken / f"{scene}-{theme}-100-{readme.WIDTH}.png")

    nbytes = readme.write_pictures(taken, tmp_path / "readme")

    written = {path.name: path.stat().st_size for path in (tmp_path / "readme").iterdir()}
    assert written.keys() == shown == {path.name for path in readme.FOLDER.iterdir()}
    assert nbytes == sum(written.values())
