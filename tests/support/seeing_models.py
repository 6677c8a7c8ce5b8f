"""Small random models that see, made with `transformers`, and prompts with a picture for them."""

import json
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from fake_ranks import RankedReference
from seeing_variants import SEEING, TEXT
from tiny_models import Reference, stored_tensors
from torch import Tensor

from potluck.cluster.driver.model_text import Picture
from potluck.cluster.driver.pictures import PromptPictures
from potluck.engine.payload import Activations, from_payload
from potluck.engine.session import Output, StepTokens
from potluck.ids import SessionId
from potluck.model.config import ModelConfig
from potluck.model.vision.pictures import picture_format
from potluck.model.vision.spec import TowerSpec
from potluck.wire.activation_messages import TensorHeader

__all__ = [
    "IMAGE_TOKEN", "SEEING", "SESSION", "TEXT", "SeeingModel", "SeeingPipeline", "SeeingRanks",
    "make_seeing_model",
]  # fmt: skip

IMAGE_TOKEN = 7
SESSION = SessionId("chat")


@dataclass(frozen=True, slots=True)
class SeeingModel:
    """A model on disk, the same in `transformers`, and a prompt with a picture."""

    reference: Reference
    ids: Tensor
    picture: Picture
    size: tuple[int, int]  # height and width that the picture had at first

    @property
    def pixels(self) -> Tensor:
        """Of the picture, (H, W, 3), u8."""
        data = bytearray(self.picture.pixels)
        return torch.frombuffer(data, dtype=torch.uint8).view(
            self.picture.height, self.picture.width, 3
        )

    @property
    def numbers(self) -> Tensor:
        """Of the picture, (H, W, 3), as the tower takes them."""
        mean, deviation = torch.tensor(self.picture.mean), torch.tensor(self.picture.deviation)
        return (self.pixels.float() / 255 - mean) / deviation

    def inputs(self) -> dict[str, Any]:
        """What `transformers` takes."""
        tower = self.reference.config.tower
        assert tower is not None
        seen = (self.ids == IMAGE_TOKEN).int()[None]
        channels = self.numbers.permute(2, 0, 1)
        if tower.axes:
            return {**_qwen_patches(channels, tower), "mm_token_type_ids": seen}
        if tower.facts.patch_form == "pixels":
            return {**_gemma_4_patches(self.numbers, tower), "mm_token_type_ids": seen}
        if tower.square:
            squares = torch.stack(channels.split(tower.square, 1))
            if tower.shapes:  # the whole comes first
                sizes = torch.tensor([self.size])
                return {"pixel_values": squares.roll(1, 0)[None], "image_sizes": sizes}
            if "connector." in next(iter(tower.facts.merger.products)):
                return {"pixel_values": squares[None]}
            more = {"token_type_ids": seen} if tower.facts.sees_ahead else {}
            return {"pixel_values": squares, **more}
        sizes = torch.tensor([[self.picture.height, self.picture.width]])
        return {"pixel_values": channels[None], "image_sizes": sizes}

    def logits(self, ids: Tensor | None = None) -> Tensor:
        """Those of `transformers` for these token ids, whose picture is this one."""
        one, model = self if ids is None else replace(self, ids=ids), self.reference.model
        with torch.inference_mode():
            if hasattr(model, "multi_modal_projector"):
                # Llama 4 of `transformers` 5.24 fails where it makes its result.
                embedded = model.get_input_embeddings()(one.ids[None].long())
                embedded[0, one.ids == IMAGE_TOKEN] = one.rows()
                return model.language_model(inputs_embeds=embedded).logits[0].float()
            inputs = one.inputs()
            if hasattr(model, "create_masks_for_generate") and "mm_token_type_ids" in inputs:
                inputs["attention_mask"] = one.masks(inputs["mm_token_type_ids"])
            return model(one.ids[None].long(), **inputs).logits[0].float()

    def masks(self, seen: Tensor) -> Any:
        """Those that `transformers` makes for `generate`: Gemma 4's `forward` makes others for 12B."""
        model, count = self.reference.model, len(self.ids)
        if not hasattr(model.config.get_text_config(), "use_bidirectional_attention"):
            return None
        return model.create_masks_for_generate(
            model.config, torch.zeros(1, count, 1), None, None, torch.arange(count)[None], seen
        )

    def rows(self) -> Tensor:
        """Those of the tower of `transformers`, with what is added in the first layers behind them."""
        inputs = {k: v for k, v in self.inputs().items() if "token_type" not in k}
        model = self.reference.model
        with torch.inference_mode():
            if (projector := getattr(model, "multi_modal_projector", None)) is not None:  # Llama 4
                found = model.get_image_features(**inputs)
                return projector(found.last_hidden_state.flatten(0, -2))
            found = model.model.get_image_features(**inputs)
        rows = found.pooler_output
        rows = torch.cat(list(rows)) if isinstance(rows, tuple | list) else rows.flatten(0, -2)
        deep = getattr(found, "deepstack_features", None) or ()
        more = [each[0] if isinstance(each, tuple | list) else each for each in deep]
        return torch.cat([rows, *more], 1)

    def prompt(self) -> PromptPictures:
        config = self.reference.config
        assert config.tower is not None
        return PromptPictures.of(self.ids.tolist(), [self.picture], IMAGE_TOKEN, config.tower)


def _qwen_patches(channels: Tensor, tower: TowerSpec) -> dict[str, Any]:
    patch, merge = tower.patch, tower.merge
    rows, columns = channels.shape[1] // patch, channels.shape[2] // patch
    x = channels.reshape(3, rows // merge, merge, patch, columns // merge, merge, patch)
    x = x.permute(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None]
    x = x.expand(*x.shape[:5], 2, *x.shape[6:]).reshape(rows * columns, -1)
    return {"pixel_values": x, "image_grid_thw": torch.tensor([[1, rows, columns]])}


def _gemma_4_patches(numbers: Tensor, tower: TowerSpec) -> dict[str, Any]:
    patch = tower.patch
    rows, columns = numbers.shape[0] // patch, numbers.shape[1] // patch
    x = numbers.reshape(rows, patch, columns, patch, 3).transpose(1, 2).reshape(rows * columns, -1)
    places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).flip(1)
    return {"pixel_values": x[None], "image_position_ids": places[None]}


def make_seeing_model(
    variant: str, folder: Path, *, seed: int = 0, token: int = IMAGE_TOKEN, **changes: Any
) -> SeeingModel:
    """Write a random model that sees into the folder, and make a prompt for it.

    Args:
        variant: of `SEEING`.
        folder: of the model.
        seed: of the weights and the prompt.
        token: stands for a row of a picture.
        changes: of its text.
    """
    kind, text, eye, whole = SEEING[variant]
    text = text | changes
    text = {
        name: value
        for name, value in (TEXT | text).items()
        if value is not None or name == "sliding_window"
    }
    config = getattr(transformers, f"{kind}Config")(
        text_config=text,
        vision_config=eye,
        **{
            "image_token_index"
            if kind in ("Llava", "LlavaNext", "Llama4")
            else "image_token_id": token
        },
        tie_word_embeddings=False,
        **whole,
    )
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            center = 1.0 if "norm" in name else -2.0 if name.endswith("A_log") else 0.0
            parameter.copy_(center + 0.2 * torch.randn(parameter.shape, generator=generator))
        for name, buffer in model.named_buffers():
            if ".std_" in name:
                buffer.copy_(torch.randn(buffer.shape, generator=generator))
            if name.endswith(("put_min", "put_max")):  # of a product's input or output
                buffer.fill_(-0.5 if name.endswith("min") else 0.4)
    model.save_pretrained(folder)
    read = ModelConfig.from_dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    assert read.tower is not None
    side, square = read.tower.cell_side, read.tower.square
    size = height, width = (square, square) if square else (5 * side, 3 * side)
    height *= 2 if read.tower.facts.is_tiled else 1
    order: tuple[int, ...] = ()
    if read.tower.shapes:  # two tiles side by side, which are black at their outer edges
        form, size = picture_format(read.tower, {}), (square, 2 * square - 7)
        assert form is not None
        layout = form.layout(*size)
        (height, width), order = layout.pixels, form.order(layout)
    pixels = torch.randint(256, (height, width, 3), generator=generator, dtype=torch.uint8)
    picture = Picture(
        name="ab" * 32,
        height=height,
        width=width,
        rows=height // side,
        columns=width // side,
        mean=(0.5, 0.4, 0.3),
        deviation=(0.5, 0.25, 0.2),
        pixels=pixels.numpy().tobytes(),
        order=order,
    )
    words = torch.randint(8, 96, (18,), generator=generator, dtype=torch.int32)
    rows = torch.full((len(picture.shown),), token, dtype=torch.int32)
    ids = torch.cat([words[:6], rows, words[6:]])
    return SeeingModel(Reference(model, read, stored_tensors(folder)), ids, picture, size)


class SeeingPipeline:
    """Stages cut at these layers, which are shown the picture. It returns the logits of every position."""

    def __init__(
        self,
        seeing: SeeingModel,
        cuts: tuple[int, ...] = (),
        scheme: Any = "f32",
        reference: Reference | None = None,
    ) -> None:
        reference = seeing.reference if reference is None else reference
        layers = reference.config.num_layers
        self.stages: list[Any] = [
            reference.stage(start, stop, head=False, scheme=scheme)
            for start, stop in pairwise([0, *cuts, layers])
        ]
        self._head = reference.stage(layers, layers, embedding=False, scheme=scheme)
        self._seeing, self._prompt = seeing, seeing.prompt()
        self.position = self._step = 0
        for stage in self.stages:
            stage.open(SESSION, epoch=1)
        self.show()

    def show(self) -> None:
        picture = self._seeing.picture
        self.stages[0].show(
            picture.name,
            self._seeing.pixels,
            mean=picture.mean,
            deviation=picture.deviation,
            epoch=1,
        )

    def trim(self, position: int) -> None:
        for stage in self.stages * 2:
            stage.trim(SESSION, position, epoch=1)
            position = stage.position(SESSION)
        self.position = position

    def _output(self, stage: Any, step: StepTokens) -> Output:
        (output,) = stage.forward_together((step,))
        if not isinstance(output, Output):
            raise output
        return output

    def run(self, ids: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """Logits (T, V) of these tokens of the conversation, in steps of these sizes."""
        return torch.cat([self._run(piece) for piece in ids.split(list(sizes))])

    def _run(self, ids: Tensor) -> Tensor:
        end = self.position + len(ids)
        said = self._prompt.of_step(self.position, end)
        places = None
        if said.places:
            header = TensorHeader(dtype="I32", shape=(3, len(ids)))
            places = from_payload(header, said.places)
        x = ids
        for stage in self.stages:
            step = StepTokens(
                SESSION, Activations.of(x), 1, self._step, self.position, None, None,
                pictures=said.rows, lag=said.lag, places=places,
                ids=None if stage is self.stages[0] else Activations.of(ids),
            )  # fmt: skip
            output = self._output(stage, step)
            assert output.hidden is not None
            x = output.hidden.tensor
        self.position, self._step = end, self._step + 1
        assert self._head.head is not None
        with torch.inference_mode():
            return self._head.head.logits(x).cpu()


class SeeingRanks(SeeingPipeline):
    """The same, by groups of ranks with these parts: each rank is shown the picture, and reads it itself."""

    def __init__(
        self, seeing: SeeingModel, parts: tuple[int, ...], cuts: tuple[int, ...] = ()
    ) -> None:
        super().__init__(seeing, cuts, reference=RankedReference.of(seeing.reference, parts))

    def show(self) -> None:
        picture, pixels = self._seeing.picture, self._seeing.pixels
        for rank in self.stages[0].stages:
            rank.show(picture.name, pixels, mean=picture.mean, deviation=picture.deviation, epoch=1)

    def _output(self, stage: Any, step: StepTokens) -> Output:
        results = stage.each(lambda rank: super(SeeingRanks, self)._output(rank, step))
        first = results[0].hidden.tensor
        assert all(torch.equal(result.hidden.tensor, first) for result in results)
        return results[0]
