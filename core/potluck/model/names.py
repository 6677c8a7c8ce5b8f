"""What all names of a decoder's tensors have in common."""

BASE = "model."  # the decoder, beside its head


def bias_name(weight: str) -> str:
    """The name of the bias beside the weight of this name."""
    return f"{weight.removesuffix('.weight')}.bias"
