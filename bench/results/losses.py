"""How far the losses of one training may be from those of another: what bench.training.train_gpt judges by, and what is
shown of its results."""

import itertools
import math

# Times, and nats: these for the first steps, at which math attention may happen to be exact. Its losses are away by one
# rounding of the loss then, 2e-7, in fp32 and by about 5e-5 in bf16.
FACTOR, FLOOR = {"fp32": 2, "bf16": 4}, {"fp32": 2e-6, "bf16": 2e-4}


def largest(values):
    """NaN where there is one."""
    return max(values, key=lambda x: (x != x, x))


def away(losses, others):
    """The difference at each step."""
    return [abs(one - other) for one, other in zip(losses, others, strict=True)]


def so_far(differences):
    """Their root mean square up to each step."""
    squares = itertools.accumulate(x * x for x in differences)
    return [math.sqrt(total / steps) for steps, total in enumerate(squares, 1)]


def allowed(of_math, dtype):
    """What that of ours may be at each step, where that of math attention is this."""
    return [FACTOR[dtype] * one + FLOOR[dtype] for one in of_math]


def most_of(differences, bounds):
    """The largest share of its bound that a difference comes to: above 1, or NaN, is too much."""
    return largest([one / bound for one, bound in zip(differences, bounds, strict=True)])
