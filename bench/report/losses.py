"""Draws the losses of the training of a small GPT, as bench.training.train_gpt wrote them: a column for each file.

    python3 -m bench.report.losses train_gpt.json --to train_gpt.png
"""

import argparse
import sys
from pathlib import Path

from bench.report import gpu_pictures
from bench.results.gpu import BadResult, load, require


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--to", type=Path, required=True, metavar="PICTURE", help="the file to write")
    chosen = parser.parse_args()
    runs = [load(path) for path in chosen.files]
    for path, run in zip(chosen.files, runs):
        require(path, run.get("losses"))
    shown = gpu_pictures.training(runs)
    try:
        gpu_pictures.save(gpu_pictures.draw_training(shown), chosen.to, shown)
    except OSError as error:
        sys.exit(f"losses: {chosen.to} cannot be written: {error.strerror}")


if __name__ == "__main__":
    try:
        main()
    except BadResult as failure:
        sys.exit(f"losses: {failure}")
