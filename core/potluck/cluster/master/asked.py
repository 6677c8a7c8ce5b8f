"""What a request asks of a model, as the planner counts it: context, schemes, memory."""

from collections.abc import Sequence
from dataclasses import replace

from potluck.api.values.schema import PlanRequest
from potluck.model.nearest import nearest_schemes
from potluck.model.schemes import AskedScheme, Cache, Scheme
from potluck.model.tensor_formats import schemes_to_try, weight_bytes
from potluck.plan.cost import DeviceCost, ModelShape
from potluck.plan.shape import shape_of
from potluck.store.registry import LocalModel

DEFAULT_CONTEXT = 8192  # tokens; users must ask for more, since it costs memory on every computer


def context_of(request: PlanRequest, model: LocalModel) -> int:
    """How many tokens a conversation may have at most: never more than the model was trained for."""
    return min(request.context or DEFAULT_CONTEXT, model.config.max_position)


def beyond_training(request: PlanRequest, model: LocalModel) -> tuple[str, ...]:
    """A warning if more tokens were asked for than the model was trained for, in a sentence or two."""
    trained = model.config.max_position
    if request.context is None or request.context <= trained:
        return ()
    return (
        f"{model.name} was trained for {trained:,} tokens, and is loaded with so many, not with"
        f" {request.context:,}: beyond them its answers would lose their sense. For longer conversations"
        " choose a model that was trained for more.",
    )


def shape_asked(
    scheme: Scheme,
    request: PlanRequest,
    model: LocalModel,
    cache: Cache | None = None,
    *,
    is_wide: bool = False,
) -> ModelShape:
    """The model in numbers, as the planner takes it; `cache` in place of the one that the request asks for."""
    context, cache = context_of(request, model), cache or request.cache
    return shape_of(model.config, scheme, context=context, cache=cache, is_wide=is_wide)


def counted_devices(
    devices: Sequence[DeviceCost], scheme: Scheme, request: PlanRequest, model: LocalModel
) -> list[DeviceCost]:
    """The devices, each with the memory that it counts for in the planner.

    A GPU keeps its KV cache in 16 bits where a CPU may keep 8, so a layer takes more memory there, and in 32
    if it has no bf16 for a model that needs it. The planner knows one size of a layer, so the memory of
    such a GPU is counted smaller by that ratio.
    """
    counted = shape_asked(scheme, request, model).layer_memory

    def share(*, is_wide: bool) -> float:
        kept = shape_asked(scheme, request, model, "full", is_wide=is_wide).layer_memory
        return min(1.0, *(here / there for here, there in zip(counted, kept, strict=True)))

    return [
        device
        if device.device.startswith("cpu")
        else replace(device, memory=int(share(is_wide=device.is_wide) * device.memory))
        for device in devices
    ]


def schemes_of(asked: AskedScheme, model: LocalModel) -> tuple[Scheme, ...]:
    """The schemes that may be used, in the order in which they are preferred."""
    if asked != "auto":
        return (asked,)
    if nearest := nearest_schemes(model.config):
        return nearest
    if model.seed is not None:  # random weights: choose as for a model with files of 16 bits
        config = model.config
        tensors = config.stage_tensors(range(config.num_layers), embedding=True, head=True)
        return schemes_to_try(config, ("BF16",), weight_bytes(config, tensors, "bf16"))
    dtypes = {tensor.dtype for tensor in model.manifest.tensors}
    return schemes_to_try(model.config, dtypes, model.manifest.nbytes)
