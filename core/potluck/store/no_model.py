"""What is wrong with a folder or a file that has no model that can be read, in the user's words."""

from pathlib import Path

from potluck.errors import BrokenModelError, UsageError
from potluck.store.gguf_files import SUFFIX as GGUF_SUFFIX

_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_HOW = " Choose the folder that holds the model's config.json, tokenizer and safetensors files, or a GGUF file."


def no_config(folder: Path) -> UsageError:
    """The error for a folder that does not say what its model is made of."""
    names = _names(folder)
    if "adapter_config.json" in names:
        why = (
            "holds an adapter (LoRA), which only changes another model. Merge it into that model with the program"
            " that made it, and choose the merged one"
        )
    elif "model_index.json" in names:
        why = "holds a model that makes pictures or sounds, and Potluck runs models that write text"
    elif any(name.startswith("consolidated") for name in names):
        why = (
            "has consolidated.safetensors of Mistral's own layout, but not the params.json that belongs to it."
            " Download that file into the folder"
        )
    elif any(name.lower().endswith(GGUF_SUFFIX) for name in names):
        why = (
            "has GGUF files, but none of a model that writes text: what is there sees pictures (mmproj), is an"
            " adapter, or was made to quantise with. Download the model's own file"
        )
    else:
        return UsageError(
            f"{folder} is not a model's folder: it has no config.json.{_HOW}", folder=str(folder)
        )
    return UsageError(f"{folder} {why}.", folder=str(folder))


def no_weights(folder: Path) -> BrokenModelError:
    """The error for a folder with a config and without weights that can be read."""
    names = _names(folder)
    safetensors = sorted(name for name in names if name.endswith(".safetensors"))
    if safetensors:
        why = (
            f"has {', '.join(safetensors[:3])}{' and more' if len(safetensors) > 3 else ''}, which is not all of a"
            " model, or more than one: parts are missing, or the index that says which belong together"
            " (model.safetensors.index.json). Download what the model's repository has beside these files"
        )
    elif any(name.endswith(_PICKLES) for name in names):
        why = (
            "has its weights as pickle files only, which can run code when they are opened. Potluck reads"
            " safetensors and GGUF: take the model in one of these forms"
        )
    elif any("mmproj" in name for name in names):
        why = (
            "has only the part that sees pictures (mmproj), and no weights of the model itself. Potluck reads"
            " safetensors and GGUF: download the model's own file"
        )
    else:
        why = "has no weights. Potluck reads safetensors and GGUF: download the model's weights into this folder"
    return BrokenModelError(f"{folder} {why}.", file="model.safetensors")


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
