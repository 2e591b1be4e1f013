"""Draws the README's picture in motion: three stages at work on the same problem, on the same clock.

    python3 -m bench.report.motion            # docs/motion.gif
    python3 -m bench.report.motion --to FILE  # elsewhere

What moves is what ./ladder watch shows: the emulator ran the kernels, a model of time (common/course/time_model.py) says
what is when.
"""

import argparse
import io
import sys
from pathlib import Path

from common.course import registry
from common.course.diff import write
from common.course.registry import ROOT, Failure
from common.course.watch import Subject, traced

STAGES = ["fa1_tiled", "fa2_sequence_parallel", "fa2_causal_skip"]
PROBLEM = ["--random", "1,1,512,64", "--causal"]
FRAMES, MILLISECONDS, PAUSE = 90, 90, 2500  # of a frame; of the last one
WIDTH, HEIGHT, SIDE, TOP = 900, 372, 256, 66  # of the picture, of a matrix; where it begins
PAPER, INK, MUTED, LINE, WORK, DONE, MASKED = "#ffffff", "#1f2328", "#59636e", "#d1d9e0", "#e69f00", "#a9d8f3", "#6d93ab"


def draw(rungs, time, end, fonts):
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
    pen = ImageDraw.Draw(picture)
    for column, rung in enumerate(rungs):
        x = 28 + column * (WIDTH - 20) // len(rungs)
        cell = SIDE / rung["Nq"]
        pen.text((x, 10), f"{rung['digits']}  {rung['title']}", INK, fonts[0])
        busy = len({block[2] for block in rung["blocks"] if block[3] <= time < block[4]})
        state = f"{busy} of {rung['multiprocessors']} multiprocessors work" if time < rung["end"] else "done"
        pen.text((x, 36), state, MUTED, fonts[1])
        for _, i0, i1, j0, j1, masked, begin, till, _ in rung["tiles"]:
            box = [x + j0 * cell, TOP + i0 * cell, x + j1 * cell - 1, TOP + i1 * cell - 1]
            if begin <= time:
                pen.rectangle(box, fill=WORK if time < till else MASKED if masked else DONE)
        for k in range(0, rung["Nq"] + 1, 64):
            pen.line([x, TOP + k * cell, x + SIDE, TOP + k * cell], LINE)
            pen.line([x + k * cell, TOP, x + k * cell, TOP + SIDE], LINE)
        pen.line([x, TOP, x + SIDE, TOP + SIDE], INK)
        bar = TOP + SIDE + 12
        pen.rectangle([x, bar, x + SIDE, bar + 8], outline=LINE)
        pen.rectangle([x, bar, x + SIDE * min(time, rung["end"]) / end, bar + 8], fill=WORK)
        moved = sum(add for till, counter, add in zip(*(rung["deltas"][name] for name in ("end", "counter", "add")))
                    if till <= time and rung["counters"][counter]["group"] == "global memory")
        pen.text((x, bar + 14), f"{moved / 1e6:.1f} MB to and from global memory", MUTED, fonts[1])
    return picture


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", metavar="FILE", type=Path, default=ROOT / "docs/motion.gif")
    chosen = parser.parse_args()
    from matplotlib import font_manager
    from PIL import ImageFont

    file = font_manager.findfont("DejaVu Sans")
    fonts = [ImageFont.truetype(file, size) for size in (16, 13)]
    stages = {stage.name: stage for stage in registry.all_stages()}
    rungs = [traced(Subject(stages[name]), PROBLEM, "forward") for name in STAGES]
    end = max(rung["end"] for rung in rungs)
    # The later stages are done in a tenth of the first one's time: the clock slows down where they work.
    times = [end * (frame / (FRAMES - 1)) ** 2 for frame in range(FRAMES)]
    pictures = [draw(rungs, time, end, fonts).quantize(32) for time in times]
    gif = io.BytesIO()
    pictures[0].save(gif, "GIF", save_all=True, append_images=pictures[1:], loop=0, optimize=True,
                     duration=[MILLISECONDS] * (FRAMES - 1) + [PAUSE])
    write(chosen.to, gif.getvalue())
    print(f"{chosen.to}: {len(pictures)} pictures, {chosen.to.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"motion: {failure}")
