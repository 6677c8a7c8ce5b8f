"""Pictures of strangers become what the image processors of `transformers` make of them, or an error in words."""

import importlib
import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageOps

from potluck.cluster.driver.model_text import Picture
from potluck.cluster.text import pictures
from potluck.cluster.text.pictures import prepare_pictures
from potluck.errors import PromptError
from potluck.model.vision.pictures import PictureFacts, PictureFormat


def prepared(files: list[bytes], form: PictureFormat) -> list[Picture]:
    return [each.picture for each in prepare_pictures(files, form)]


def form(size: Any, **changes: Any) -> PictureFormat:
    return PictureFormat(
        facts=PictureFacts(size=size, mark="", token="x"),
        **{
            "square": 0,
            "least": 1,
            "most": 1,
            "rows": 2048,
            "resample": 3,
            "mean": (0.5, 0.5, 0.5),
            "deviation": (0.5, 0.5, 0.5),
            **changes,
        },
    )


QWEN = form(
    "area",
    side=28,
    least=56 * 56,
    most=28 * 28 * 1280,
    mean=(0.48145466, 0.4578275, 0.40821073),
    deviation=(0.26862954, 0.26130258, 0.27577711),
)
GLM = form(
    "frames",
    side=28,
    least=112 * 112,
    most=28 * 28 * 500,
    mean=QWEN.mean,
    deviation=QWEN.deviation,
)
GEMMA = form("square", side=56, square=224, resample=2)


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


def _turned(how: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = how
    return exif


def turned(how: int) -> bytes:
    """A photograph of a telephone that was held in one of eight ways."""
    return saved(drawn("RGB", (120, 80)), "JPEG", exif=_turned(how))


FILES = {
    "odd sizes": saved(drawn("RGB", (333, 127))),
    "alpha": saved(drawn("RGBA", (100, 90))),
    "grey": saved(drawn("L", (64, 65))),
    "palette": saved(drawn("P", (70, 60))),
    "one pixel": saved(drawn("RGB", (1, 1))),
    "turned by EXIF": turned(6),
    **{f"turned by EXIF {how}": turned(how) for how in (2, 3, 4, 5, 7, 8)},
    "alpha of a palette": saved(drawn("P", (50, 61)), transparency=3),
    "grey with alpha": saved(drawn("LA", (47, 31))),
    "one bit": saved(drawn("L", (40, 33)).convert("1")),
    "cmyk": saved(drawn("CMYK", (61, 45)), "JPEG"),
    "a line": saved(drawn("RGB", (190, 1))),
    "a column": saved(drawn("RGB", (3, 350))),
    "webp of films, its first frame": saved(
        drawn("RGB", (60, 50)),
        "WEBP",
        lossless=True,
        save_all=True,
        append_images=[Image.new("RGB", (60, 50), "red")],
    ),
    "png of films, its first frame": saved(
        drawn("RGB", (60, 50)),
        "PNG",
        save_all=True,
        append_images=[Image.new("RGB", (60, 50), "red")],
    ),
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
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
    from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    image = ImageOps.exif_transpose(Image.open(io.BytesIO(FILES[name])))
    glm_s = Glm4vImageProcessorPil(size={"shortest_edge": GLM.least, "longest_edge": GLM.most})
    for ours_is, processor in ((QWEN, Qwen2VLImageProcessorPil()), (GLM, glm_s)):
        (found,) = prepared([FILES[name]], ours_is)
        theirs = processor(images=[image], return_tensors="pt")

        rows, columns = found.height // 14, found.width // 14
        assert theirs["image_grid_thw"].tolist() == [[1, rows, columns]]
        ours = numbers(found).view(3, rows // 2, 2, 14, columns // 2, 2, 14)
        ours = ours.permute(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None]
        ours = ours.expand(-1, -1, -1, -1, -1, 2, -1, -1).reshape(rows * columns, -1)
        assert (ours - theirs["pixel_values"]).abs().max() < 1e-5

    (gemma,) = prepared([FILES[name]], GEMMA)
    square = Gemma3ImageProcessorPil()(images=[image], return_tensors="pt")["pixel_values"]
    assert (numbers(gemma) - square[0]).abs().max() < 1e-5


def tower_input(picture: Picture, square: int) -> torch.Tensor:
    """(tiles, 3, S, S), or with one tile of another size."""
    shown = numbers(picture)
    tiles = torch.stack(shown.split(square, 1)) if square else shown[None]
    return tiles.roll(1, 0)[None] if picture.order else tiles  # LLaVA-NeXT begins with the whole


MODELS: dict[str, tuple[PictureFormat, str, dict[str, object]]] = {
    "pixtral": (
        form("edge", side=16, most=200, mean=QWEN.mean, deviation=QWEN.deviation),
        "pixtral.image_processing_pil_pixtral.PixtralImageProcessorPil",
        {"size": {"longest_edge": 200}, "patch_size": {"height": 16, "width": 16}},
    ),
    "llava": (
        form("crop", side=14, square=56, mean=QWEN.mean, deviation=QWEN.deviation),
        "llava.image_processing_pil_llava.LlavaImageProcessorPil",
        {"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}},
    ),
    "llava next": (
        form(
            "shapes",
            side=14,
            square=56,
            mean=QWEN.mean,
            deviation=QWEN.deviation,
            shapes=((1, 2), (2, 1), (2, 2), (3, 1), (1, 3)),
        ),
        "llava_next.image_processing_pil_llava_next.LlavaNextImageProcessorPil",
        {
            "size": {"shortest_edge": 56},
            "crop_size": {"height": 56, "width": 56},
            "image_grid_pinpoints": [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]],
        },
    ),
    "idefics 3": (
        form("split", side=14, square=56, step=60, most=240, rows=26, resample=1),
        "idefics3.image_processing_pil_idefics3.Idefics3ImageProcessorPil",
        {"size": {"longest_edge": 240}, "max_image_size": {"longest_edge": 60}},
    ),
    "internvl": (
        form("grid", side=28, square=56, rows=12),
        "got_ocr2.image_processing_pil_got_ocr2.GotOcr2ImageProcessorPil",
        {
            "size": {"height": 56, "width": 56},
            "crop_to_patches": True,
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
        },
    ),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("model", MODELS)
def test_pictures_are_those_of_other_processors(model: str, name: str) -> None:
    ours_is, theirs_is, options = MODELS[model]
    module, kind = theirs_is.rsplit(".", 1)
    processor = getattr(importlib.import_module(f"transformers.models.{module}"), kind)(**options)
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(FILES[name])))

    (ours,) = prepared([FILES[name]], ours_is)
    theirs = processor(images=[image], return_tensors="pt")["pixel_values"]
    if ours_is.step:  # pixels that make no patch
        theirs = theirs[0, ..., :56, :56]

    found = tower_input(ours, ours_is.square)
    assert found.shape == theirs.shape
    assert (found - theirs).abs().max() < 1e-5


@pytest.mark.parametrize("name", FILES)
def test_pictures_are_those_of_the_processor_of_gemma_4(name: str) -> None:
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    image = ImageOps.exif_transpose(Image.open(io.BytesIO(FILES[name])))
    ours_is = form("budget", side=48, rows=70, mean=(0, 0, 0), deviation=(1, 1, 1))
    (ours,) = prepared([FILES[name]], ours_is)
    theirs = Gemma4ImageProcessorPil(max_soft_tokens=70)(images=[image], return_tensors="pt")

    rows, columns = ours.height // 16, ours.width // 16
    patches = numbers(ours).permute(1, 2, 0).reshape(rows, 16, columns, 16, 3).transpose(1, 2)
    found = patches.reshape(rows * columns, -1)
    assert theirs["num_soft_tokens_per_image"].tolist() == [rows * columns // 9]
    assert (found - theirs["pixel_values"][0, : rows * columns]).abs().max() < 1e-5


def test_tiles_of_a_canvas_stand_one_below_the_other_in_black() -> None:
    """Llama 4: of 40 x 56 pixels in tiles of 32, two lines of two, and the whole picture."""
    image = drawn("RGB", (56, 40))
    (found,) = prepared([saved(image)], form("canvas", side=16, square=32, rows=16, resample=2))

    pixels = np.frombuffer(found.pixels, np.uint8).reshape(5, 32, 32, 3)
    whole = np.zeros((64, 64, 3), np.uint8)
    whole[:40, :56] = np.asarray(image)
    assert (pixels[1] == whole[:32, 32:]).all()
    assert (pixels[2] == whole[32:, :32]).all()
    small = image.resize((32, 32), Image.Resampling.BILINEAR)
    assert (pixels[4] == np.asarray(small)).all()


_PEAK = """
import resource, sys
import test_pictures
data = open(sys.argv[1], "rb").read()
test_pictures.prepared([test_pictures.FILES["grey"]], test_pictures.QWEN)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
test_pictures.prepared([data], test_pictures.QWEN)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="its peak is told in KiB on Linux alone")
@pytest.mark.parametrize(("mode", "most"), [("RGB", 2.2), ("RGBA", 3.3)])
def test_a_photo_of_20_megapixels_takes_a_few_times_its_pixels(
    mode: str, most: float, tmp_path: Path
) -> None:
    """Upright, and once more as it is turned; with alpha, in four colours and in three."""
    small = drawn(mode, (684, 456))
    file = tmp_path / "photo"
    small.resize((5472, 3648)).save(
        file, "JPEG" if mode == "RGB" else "PNG", exif=_turned(6), compress_level=1
    )

    peak = subprocess.run(
        [sys.executable, "-c", _PEAK, file],
        cwd=Path(__file__).parent,
        check=True,
        capture_output=True,
    )

    assert int(peak.stdout) * 1024 < most * 3 * 5472 * 3648


def test_grey_of_16_bits_is_as_bright_as_grey_of_8_bits() -> None:
    grey = drawn("L", (64, 65))
    deep = Image.fromarray(np.asarray(grey, dtype=np.uint16) * 257)
    assert deep.mode.startswith("I;16")

    (found,), (expected,) = (prepared([saved(one)], GEMMA) for one in (deep, grey))

    assert found.pixels == expected.pixels


def test_a_picture_has_its_name_from_its_content() -> None:
    one, same, other = prepared(
        [FILES["grey"], saved(Image.open(io.BytesIO(FILES["grey"])), "PNG", compress_level=1), FILES["alpha"]],
        QWEN,
    )  # fmt: skip
    assert one.name == same.name != other.name


def bomb(side: int, colours: int = 2) -> bytes:
    """The header of a PNG with so many pixels of this kind of colours, which has next to no data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", side, side, 8, colours, 0, 0, 0)
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
        (bomb(10, 3), "damaged"),  # colours of a palette that it lacks
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
