"""Which stages are ours: what the models are trained with, where the user names none."""

from common.course import registry

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}  # as the module flashladder calls them


def here(flashladder):
    """The stages that run on the GPU present; without one all."""
    return [one for one in flashladder.stages() if "cuda" in one.backends] or flashladder.stages()


def fastest(flashladder, dtype):
    """The stages with the fastest forward and the fastest backward pass, as flashladder.torch.attention takes them."""
    return tuple(registry.fastest(which, DTYPES[dtype], here(flashladder)) for which in ("forward", "backward"))


def deterministic(flashladder, dtype):
    """The same with a backward pass that gives the same bits every time: the first of flashladder.torch's that is there. ValueError
    where none is."""
    forward = registry.fastest("forward", DTYPES[dtype], here(flashladder))
    found = {one.number: one for one in here(flashladder) if DTYPES[dtype] in one.dtypes}
    for number in flashladder.torch.DETERMINISTIC:
        if number in found:
            return forward, found[number]
    raise ValueError(f"no stage has a deterministic backward pass in {dtype}: ./ladder list says what each takes")
