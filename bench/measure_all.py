#!/usr/bin/env python3
"""Measures on the GPU present everything that the repository's charts and tables of a GPU are made of.

    pip install . && python3 bench/measure_all.py     # to bench/results/h200 on an H200, and so on
    python3 bench/measure_all.py --out DIR --only peers_bf16.json profile.json

Each file is made by one command, which --list shows; what a command does, its own --help says. They run one after the
other. Where one fails, the others still run, and this script fails at the end.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from gpu_results import FOLDER  # noqa: E402
from markers import ROOT, commit_of, nvidia_smi  # noqa: E402


def bench(pattern):
    """Rows of ./ladder bench: with the peaks, which it measures along with any of them."""
    return ["{build}/bench/flashladder_bench", f"--benchmark_filter={pattern}", "--benchmark_out={unfinished}",
            "--benchmark_out_format=json", "--benchmark_context=commit={commit}"]


def script(name, *options):
    return [sys.executable, f"bench/{name}.py", *options, "--commit", "{commit}", "--out", "{file}"]


# File and command; {build}, {file}, {unfinished}, beside it until all is well, and {commit} are filled in.
RESULTS = {
    "stages.json": bench("/(grid|heads)/"),
    "backward.json": bench("/backward/"),
    "peers_bf16.json": script("compare", "--stages", "16", "17", "18", "19"),
    "backward_peers_bf16.json": script("compare", "--backward"),
    "profile.json": script("nsight", "--profile", "--program", "{build}/flashladder"),
    "nsight.json": script("nsight", "--program", "{build}/flashladder"),
    "ablation_19.json": script("ablation", "--stage", "19", "--build", "{build}"),
    "ablation_23.json": script("ablation", "--stage", "23", "--build", "{build}"),
    "atomics.json": script("atomics", "--build", "{build}"),
    "train_gpt.json": script("train_gpt"),
    "train_gpt_bf16.json": script("train_gpt", "--dtype", "bf16", "--stages", "19", "23"),
    "training.json": script("train_throughput"),
}


def folder_of_gpu():
    """Where the results of the GPU present go: bench/results/h200 of an NVIDIA H200. None where there is no GPU."""
    found = nvidia_smi("name")
    return found and ROOT / "bench/results" / re.sub(r"\W+", "_", found[0].removeprefix("NVIDIA ").lower())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--commit", help="what was built and installed; asked of git where left out")
    parser.add_argument("--out", type=Path, help="the folder to write to (that of this GPU under bench/results)")
    parser.add_argument("--only", nargs="+", choices=RESULTS, default=list(RESULTS), metavar="FILE",
                        help=f"of {' '.join(RESULTS)} (all)")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", help="build folder (build/release)")
    parser.add_argument("--list", action="store_true", help="print the commands, and run none")
    chosen = parser.parse_args()
    if not chosen.list:
        chosen.commit = commit_of(chosen.commit)
        if chosen.commit == "unknown":
            parser.error("git does not know these sources: --commit HASH says what is measured")
        if chosen.out is None:
            chosen.out = folder_of_gpu()
            if chosen.out is None:
                parser.error("nvidia-smi finds no GPU, and all of this is measured on one; --list shows the commands")
            try:
                chosen.out.mkdir(exist_ok=True)
            except OSError as error:
                parser.error(f"{chosen.out} cannot be made: {error.strerror}: --out DIR names another folder")
        if not chosen.out.is_dir():
            parser.error(f"--out {chosen.out} is no folder: make it first")
    failed = []
    build = os.path.relpath(chosen.build, ROOT)  # the results keep it: nothing of where they were made
    folder = Path("DIR") if chosen.out is None else chosen.out if chosen.list else chosen.out.resolve()
    for name in chosen.only:
        file = folder / name
        # Google Benchmark empties its file before it begins: what fails is to leave the one that is there.
        unfinished = file if chosen.list else file.with_name(f".{name}")
        values = {"build": build, "file": file, "unfinished": unfinished, "commit": chosen.commit or "HASH"}
        words = [word.format(**values) for word in RESULTS[name]]
        print(f"{name}: {shlex.join(words)}", flush=True)
        if chosen.list:
            continue
        begin = time.monotonic()
        try:
            status = subprocess.run(words, cwd=ROOT).returncode
        except OSError as error:
            print(f"measure_all: {words[0]} cannot be run: {error.strerror}: ./ladder setup builds it", file=sys.stderr)
            status = 127
        print(f"{name}: {'done' if status == 0 else f'exit status {status}'} after {time.monotonic() - begin:.0f} s\n",
              flush=True)
        if status != 0:
            failed.append(name)
            unfinished.unlink(missing_ok=True)
        elif unfinished.exists():
            unfinished.replace(file)
    if failed:
        sys.exit(f"measure_all: failed: {', '.join(failed)}")
    if not chosen.list:
        if folder == FOLDER:
            print("Next: bench/gpu_report.py, bench/attribution.py and bench/ablation.py write the charts and tables")
        elif (folder / "stages.json").exists():
            print(f"Next: bench/gpu_report.py --of {shlex.quote(str(chosen.out))} --to DIR makes charts and tables of all "
                  "but profile.json and the ablations")


if __name__ == "__main__":
    main()
