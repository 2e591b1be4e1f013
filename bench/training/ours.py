"""Which stages are ours: what the models are trained with, where the user names none."""

from common.course import registry

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}  # as the module flashladder calls them


def fastest(flashladder, dtype):
    """The stages with the fastest forward and the fastest backward pass, as flashladder.torch.attention takes them."""
    return tuple(registry.fastest(which, DTYPES[dtype], flashladder.stages()) for which in ("forward", "backward"))


def deterministic(flashladder, dtype):
    """The same with a backward pass that adds in a fixed order. ValueError where there is none."""
    forward = registry.fastest("forward", DTYPES[dtype], flashladder.stages())
    backward = registry.deterministic("backward", DTYPES[dtype], flashladder.stages())
    if backward is None:
        raise ValueError(f"no stage has a deterministic backward pass in {dtype}: ./ladder list says what each takes")
    return forward, backward
