"""What the notebooks share: the look of their figures, the judge of their exercises, the program behind ./ladder.

Each notebook imports it from its own folder:  from helpers import BLUE, ORANGE, check, ladder, watch
"""

from __future__ import annotations

import html
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from numbers import Number
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

ROOT = Path(__file__).resolve().parent.parent  # of the repository

# --- The look -----------------------------------------------------------------------------------------------------

INK, MUTED, FRAME = "#1f2328", "#59636e", "#d1d9e0"
# The palette of Okabe and Ito, which the colour-blind tell apart too.
BLUE, ORANGE, GREEN, PINK, RED, SKY = "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9"

plt.rcParams.update({
    # Opaque and light, so that a figure can be read on a dark page too.
    "figure.facecolor": "white", "savefig.facecolor": "white", "axes.facecolor": "white",
    "figure.dpi": 100, "savefig.dpi": 100, "figure.constrained_layout.use": True,
    "font.size": 11, "text.color": INK, "axes.titlesize": 12, "axes.titlelocation": "left", "axes.titleweight": "bold",
    "axes.edgecolor": FRAME, "axes.labelcolor": MUTED, "axes.spines.top": False, "axes.spines.right": False,
    "axes.prop_cycle": plt.cycler(color=[BLUE, ORANGE, GREEN, PINK, RED, SKY]),
    "xtick.color": MUTED, "ytick.color": MUTED, "legend.frameon": False, "svg.hashsalt": "flashladder",
})

# --- The ladder ---------------------------------------------------------------------------------------------------


def ladder(*arguments: Any) -> Any:
    """What `./ladder ARGUMENTS --json` says: ladder("ledger", 11, "--random", "1,2,256,64")["stages"]."""
    program = Path(os.environ.get("FLASHLADDER_PROGRAM") or ROOT / "build/release/flashladder")
    if not program.is_file():
        raise FileNotFoundError(f"the program {program.name} is not built: ./ladder setup builds it")
    done = subprocess.run([program, *map(str, arguments), "--json"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"{program.name} ended with {done.returncode}")
    return json.loads(done.stdout)


def watch(*stages: int, rows: int, causal: bool = False, height: int = 1080) -> Any:
    """What `./ladder watch` makes of one stage or two, for one head with d = 64."""
    from IPython.display import HTML  # the judge of the exercises needs no Jupyter

    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        done = subprocess.run(
            [sys.executable, "-B", "-m", "common.course.watch", *map(str, stages), "--random", f"1,1,{rows},64",
             *([] if causal else ["--full"]), "--no-open", "--out", page], capture_output=True, text=True, cwd=ROOT)
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        text = html.escape(page.read_text())
    names = " and ".join(map(str, stages))
    return HTML(f'<div><iframe srcdoc="{text}" title="{names} at work" '
                f'style="width: 100%; height: {height}px; border: 0"></iframe></div>')


# --- Exercises ----------------------------------------------------------------------------------------------------


class Verdict:
    """What check() has to say of an answer; true when it is right."""

    def __init__(self, right: bool, text: str):
        self.right, self.text = right, text

    def __bool__(self) -> bool:
        return self.right

    def __repr__(self) -> str:
        return self.text


def check(exercise: int | str, answer: Any, right: Any, *, on: Sequence[tuple] | None = None, within: float = 1e-9,
          slips: Sequence[tuple[Any, str]] = (), hint: str = "") -> Verdict:
    """Judges the answer to an exercise, and says what is off. The last line of a cell, it shows the verdict.

    answer  a number, truth value, text, array, tuple of these, or a function; `...` while there is none
    right   what it should be; of a function, a function that is right
    on      of a function: the tuples of arguments that it is tried on
    within  how far a number may be off, relative to the largest number of what it is compared with
    slips   likely mistakes: pairs of a wrong answer (of a function: a wrong function) and what to say of it
    hint    what helps with any other mistake
    """
    try:
        wrong = _compare(answer, right, on, within)
    except _NoAnswer:
        return Verdict(False, f"Exercise {exercise}: not answered yet. Replace the ... above, run the cell, then this "
                              "one.")
    if not wrong:
        return Verdict(True, f"Exercise {exercise}: right.")
    advice = next((text for slip, text in slips if not _compare(answer, slip, on, within)), hint)
    return Verdict(False, f"Exercise {exercise}: not yet. {wrong}" + (f" {advice}" if advice else ""))


class _NoAnswer(Exception):
    pass


def _compare(answer: Any, right: Any, on: Sequence[tuple] | None, within: float) -> str:
    """"" when the answer is as it should be, else a sentence on what is off. _NoAnswer when there is none."""
    if on is None:
        wrong = _differs(answer, right, within)
        return wrong and f"Your answer {wrong}."
    if answer is ...:
        raise _NoAnswer
    if not callable(answer):
        return f"Your answer is {_short(answer)}, and should be a function."
    for arguments in on:
        # Each gets arguments of its own, so that a function that writes into them changes nobody else's.
        expected = right(*_copy(arguments))
        call = f"{getattr(answer, '__name__', 'your function')}({', '.join(map(_short, arguments))})"
        try:
            got = answer(*_copy(arguments))
        except Exception as error:  # the student's, whatever it is
            return f"{call} raises {type(error).__name__}: {str(error).rstrip('.')}."
        if inspect.isgenerator(got):
            return f"{call} is a generator: return a value, and do not yield it."
        if wrong := _differs(got, expected, within):
            return f"{call} {wrong}."
    return ""


def _differs(got: Any, right: Any, within: float) -> str:
    """"" when `got` is `right`, else what is off, without giving it away. Written so that NaN differs from all."""
    if got is ...:
        raise _NoAnswer
    if got is None:
        return "is None: is a `return` missing?"
    if isinstance(right, str):
        return "" if isinstance(got, str) and got.strip().lower() == right.lower() else f"is {_short(got)}"
    if isinstance(right, (bool, np.bool_)):
        if not isinstance(got, (bool, np.bool_)):
            return f"is {_short(got)}, and should be True or False"
        return "" if bool(got) == bool(right) else f"is {bool(got)}"
    if isinstance(right, tuple):
        if not isinstance(got, (tuple, list)) or len(got) != len(right):
            return f"is {_short(got)}, and should be {len(right)} values"
        for place, (one, other) in enumerate(zip(got, right)):
            if wrong := _differs(one, other, within):
                return f"is off: its value {place} {wrong}"
        return ""
    if callable(got):
        return "is a function: call it, or give what it returns"
    try:
        numbers, expected = np.asarray(got, dtype=float), np.asarray(right, dtype=float)
    except (TypeError, ValueError):
        return f"is {_short(got)}, and should be {'a number' if isinstance(right, Number) else 'an array of numbers'}"
    if isinstance(got, (bool, np.bool_)) or numbers.dtype.kind != "f" or numbers.shape != expected.shape:
        wanted = "a number" if expected.shape == () else f"an array of shape {expected.shape}"
        return f"is {_short(got)}{f' of shape {numbers.shape}' * bool(numbers.shape)}, and should be {wanted}"
    finite = np.abs(expected[np.isfinite(expected)])
    tolerance = within * (finite.max() if finite.size else 1)
    with np.errstate(invalid="ignore"):
        fine = (numbers == expected) | (np.abs(numbers - expected) <= tolerance)
    if np.all(fine):
        return ""
    at = tuple(int(i) for i in np.argwhere(~fine)[0])
    one = numbers[at]
    size = "not a number" if np.isnan(one) else "too large" if one > expected[at] else "too small"
    return f"is {_short(one)}, {size}" if not at else f"is off: element {list(at)} is {_short(one)}, {size}"


def _copy(arguments: tuple) -> tuple:
    return tuple(x.copy() if isinstance(x, np.ndarray) else x for x in arguments)


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.ndim:
        return "an array"
    if isinstance(value, (float, np.floating)):
        return f"{value:.6g}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))})"
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 60 else text[:57] + "..."
