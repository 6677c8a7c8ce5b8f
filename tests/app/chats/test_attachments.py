"""Files that are attached to a message."""

from pathlib import Path

import pytest

from potluck_app.chats.attachments import (
    MAX_BYTES,
    MAX_FILES,
    AttachmentError,
    attach,
    read_attachment,
)
from potluck_app.chats.values import Attachment, Message, prompt_text


def small(data: bytes) -> bytes | None:
    return data[:4] or None


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a\r\nb", "a\nb"),
        ("\ufeffé".encode(), "é"),
        ("é".encode("utf-16"), "é"),
        (b"", ""),
    ],
)
def test_text_is_read_in_the_usual_encodings(tmp_path: Path, data: bytes, text: str) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(data)

    assert read_attachment(path, small) == Attachment(name="a.py", text=text)


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("cat.PNG", b"", "no picture that can be read"),
        ("paper.pdf", b"", "no plain text"),
        ("program", b"\x7fELF\x00\x00", "no text"),
        ("latin.txt", b"caf\xe9", "no text"),
        ("long.txt", b"x" * (MAX_BYTES + 1), "524 kB"),
        ("folder", None, "is no file"),
    ],
)
def test_what_is_no_text_is_told(
    tmp_path: Path, name: str, data: bytes | None, sentence: str
) -> None:
    path = tmp_path / name
    if data is None:
        path.mkdir()
    else:
        path.write_bytes(data)

    with pytest.raises(AttachmentError, match=sentence):
        read_attachment(path, small)


def test_the_good_ones_of_several_are_attached(tmp_path: Path) -> None:
    good = tmp_path / "a.txt"
    good.write_text("a")

    read, troubles = attach([tmp_path / "none.txt", good], [], small)

    assert [file.name for file in read] == ["a.txt"]
    assert len(troubles) == 1


def test_a_message_takes_so_many_files_and_no_more(tmp_path: Path) -> None:
    good = tmp_path / "a.txt"
    good.write_text("a")
    before = [Attachment(name="b", text="")] * (MAX_FILES - 1)

    read, troubles = attach([good, good], before, small)

    assert len(read) == len(troubles) == 1
    assert str(MAX_FILES) in troubles[0]


def test_a_picture_is_made_small_and_goes_beside_the_text(tmp_path: Path) -> None:
    photo = tmp_path / "photo.JPG"
    photo.write_bytes(b"12345678")

    attached = read_attachment(photo, small)

    assert attached == Attachment(name="photo.JPG", picture="MTIzNA==")
    assert attached.nbytes == 6
    assert prompt_text(Message(role="user", text="What?", attachments=(attached,))) == "What?"


def test_a_message_takes_as_many_bytes_of_pictures_as_a_request_may_have(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.png").write_bytes(bytes(5 << 20))

    read, (trouble,) = attach([tmp_path / "a.png", tmp_path / "b.png"], (), lambda data: data)

    assert [each.name for each in read] == ["a.png"]
    assert "no room for b.png" in trouble
