"""Pictures of strangers become what the image processors of `transformers` make of them, or an error in words."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from potluck.cluster.driver.model_text import Picture
from potluck.cluster.text import pictures
from potluck.cluster.text.pictures import prepare_pictures
from potluck.errors import PromptError
from potluck.model.vision.pictures import PictureFacts, PictureFormat

QWEN = PictureFormat(
    facts=PictureFacts(size="area", mark="", token="x"),
    side=28,
    square=0,
    least=56 * 56,
    most=28 * 28 * 1280,
    resample=3,
    mean=(0.48145466, 0.4578275, 0.40821073),
    deviation=(0.26862954, 0.26130258, 0.27577711),
)
GEMMA = PictureFormat(
    facts=PictureFacts(size="square", mark="", token="x"),
    side=56,
    square=224,
    least=1,
    most=1,
    resample=2,
    mean=(0.5, 0.5, 0.5),
    deviation=(0.5, 0.5, 0.5),
)


def drawn(mode: str, size: tuple[int, int]) -> Image.Image:
    """Noise with a shape on it."""
    channels = len(Image.new(mode, (1, 1)).getbands())
    shape = (size[1], size[0], channels) if channels > 1 else (size[1], size[0])
    noise = np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8)
    image = Image.fromarray(noise, mode if mode != "P" else "L").convert(mode)
    ImageDraw.Draw(image).rectangle((size[0] // 4, 0, size[0] // 2, size[1] // 2), fill=0)
    return image


def saved(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def turned() -> bytes:
    """A photograph of a telephone that was held upright."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return saved(drawn("RGB", (120, 80)), "JPEG", exif=exif)


FILES = {
    "odd sizes": saved(drawn("RGB", (333, 127))),
    "alpha": saved(drawn("RGBA", (100, 90))),
    "grey": saved(drawn("L", (64, 65))),
    "palette": saved(drawn("P", (70, 60))),
    "one pixel": saved(drawn("RGB", (1, 1))),
    "turned by EXIF": turned(),
    "webp": saved(drawn("RGB", (90, 70)), "WEBP", lossless=True),
    "gif, its first frame": saved(
        drawn("P", (60, 50)), "GIF", save_all=True, append_images=[Image.new("P", (60, 50), 9)]
    ),
    "large": saved(drawn("RGB", (3000, 2000)), "JPEG"),
}


def numbers(picture: Picture) -> torch.Tensor:
    """(3, H, W), as the tower takes them."""
    pixels = np.frombuffer(picture.pixels, np.uint8).reshape(picture.height, picture.width, 3)
    mean, deviation = np.array(picture.mean, np.float32), np.array(picture.deviation, np.float32)
    return torch.from_numpy((pixels.astype(np.float32) / 255 - mean) / deviation).permute(2, 0, 1)


@pytest.mark.parametrize("name", FILES)
def test_pictures_are_those_of_the_processors(name: str) -> None:
    from transformers.image_utils import load_image
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    image = load_image(Image.open(io.BytesIO(FILES[name])))
    (qwen,) = prepare_pictures([FILES[name]], QWEN)
    theirs = Qwen2VLImageProcessorPil()(images=[image], return_tensors="pt")

    rows, columns = qwen.height // 14, qwen.width // 14
    assert theirs["image_grid_thw"].tolist() == [[1, rows, columns]]
    ours = numbers(qwen).view(3, rows // 2, 2, 14, columns // 2, 2, 14).permute(1, 4, 2, 5, 0, 3, 6)
    ours = ours[:, :, :, :, :, None].expand(-1, -1, -1, -1, -1, 2, -1, -1)
    assert (ours.reshape(rows * columns, -1) - theirs["pixel_values"]).abs().max() < 1e-5

    (gemma,) = prepare_pictures([FILES[name]], GEMMA)
    square = Gemma3ImageProcessorPil()(images=[image], return_tensors="pt")["pixel_values"]
    assert (numbers(gemma) - square[0]).abs().max() < 1e-5


def test_grey_of_16_bits_is_as_bright_as_grey_of_8_bits() -> None:
    grey = drawn("L", (64, 65))
    deep = Image.fromarray(np.asarray(grey, dtype=np.uint16) * 257)
    assert deep.mode.startswith("I;16")

    (found,), (expected,) = (prepare_pictures([saved(one)], GEMMA) for one in (deep, grey))

    assert found.pixels == expected.pixels


def test_a_picture_has_its_name_from_its_content() -> None:
    one, same, other = prepare_pictures(
        [FILES["grey"], saved(Image.open(io.BytesIO(FILES["grey"])), "PNG", compress_level=1), FILES["alpha"]],
        QWEN,
    )  # fmt: skip
    assert one.name == same.name != other.name


def bomb(side: int) -> bytes:
    """The header of a PNG with so many pixels, which has next to no data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(1000))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no picture"),
        (b"GIF89a", "no picture|damaged"),
        (b"%PDF-1.7 not a picture", "no picture"),
        (saved(drawn("RGB", (40, 40)), "TIFF"), "no picture"),
        (FILES["odd sizes"][:5000], "damaged"),
        (FILES["large"][:5000], "damaged"),
        (bomb(100_000), "megapixels"),
        (bomb(500), "damaged"),
    ],
)
def test_what_cannot_be_read_is_said(data: bytes, words: str) -> None:
    with pytest.raises(PromptError, match=words):
        prepare_pictures([data], QWEN)


def test_bytes_that_are_changed_at_random_end_in_a_picture_or_in_words() -> None:
    random = np.random.default_rng(5)
    for name in ("odd sizes", "webp", "gif, its first frame", "turned by EXIF"):
        for _ in range(25):
            data = bytearray(FILES[name])
            for place in random.integers(0, len(data), 12):
                data[place] = int(random.integers(256))
            try:
                prepare_pictures([bytes(data)], GEMMA)
            except PromptError:
                continue


def test_more_pixels_than_a_prompt_may_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MOST_PREPARED", 3 * 224 * 224)

    assert len(prepare_pictures([FILES["grey"]], GEMMA)) == 1
    with pytest.raises(PromptError, match="too many"):
        prepare_pictures([FILES["grey"]] * 2, GEMMA)
