"""Measures on the GPU present everything that the repository's charts and tables of a GPU are made of.

    pip install . && python3 -m bench.measure.measure_all     # to bench/results/h200 on an H200, and so on
    python3 -m bench.measure.measure_all --out DIR --only peers_bf16.json profile.json

Each file is made by one command, which --list shows; what a command does, its own --help says. They run one after the
other. Where one fails, the others still run, and this script fails at the end.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from bench.measure.facts import commit_of, nvidia_smi, write
from bench.results.gpu import FOLDER
from common.course.registry import FIRST_VARIANT, ROOT, for_hopper


def bench(pattern):
    """Rows of ./ladder bench: with the peaks, which it measures along with any of them."""
    return ["{build}/bench/flashladder_bench", f"--benchmark_filter={pattern}", "--benchmark_out={unfinished}",
            "--benchmark_out_format=json", "--benchmark_context=commit={commit}"]


def module(name, *options):
    return [sys.executable, "-m", f"bench.{name}", *options, "--commit", "{commit}", "--out", "{file}"]


# File and command; {build}, {file}, {unfinished}, beside it until all is well, and {commit} are filled in.
RESULTS = {
    "stages.json": bench("/(grid|heads)/"),
    "backward.json": bench("/backward/"),
    "peers_bf16.json": module("measure.compare"),
    "peers_hopper_bf16.json": module("measure.compare", "--hopper"),
    "backward_hopper_bf16.json": module("measure.compare", "--backward", "--stages", "38",
                                        *(str(number) for number in for_hopper("backward") if number < FIRST_VARIANT)),
    "backward_persistent_bf16.json": module("measure.compare", "--backward", "--d", "64", "128", "--stages", "63", "66",
                                            "--peers", "fa2", "cudnn", "flash-attn-4"),
    "backward_same_bits_bf16.json": module("measure.compare", "--backward", "--d", "64", "128", "--stages", "63", "64", "66",
                                           "67", "68", "--peers", "fa2", "cudnn"),
    "other.json": bench("/(other|host)/"),
    "peers_hopper_odd_bf16.json": module("measure.compare", "--stages", "51", "65", "--d", "72", "88", "136", "184", "200"),
    "host.json": module("measure.host_time"),
    "stamps.json": module("measure.stamps", "--build", "{build}"),
    "busy_bf16.json": module("measure.compare", "--busy", "--hopper", "--peers", "fa2", "cudnn", "flash-attn-4"),
    "policies_window.json": module("measure.policies", "--variant", "window:1024", "--stage", "72"),
    "policies_prefix.json": module("measure.policies", "--variant", "prefix:1024", "--stage", "73"),
    "policies_documents.json": module("measure.policies", "--variant", "documents", "--stage", "74"),
    "policies_softcap.json": module("measure.policies", "--variant", "softcap:30", "--stage", "75"),
    "policies_alibi.json": module("measure.policies", "--variant", "alibi", "--stage", "76"),
    "policies_sinks.json": module("measure.policies", "--variant", "sinks", "--stage", "77"),
    "policies_dropout.json": module("measure.policies", "--variant", "dropout:0.1", "--stage", "78"),
    "policies_blocks.json": module("measure.policies", "--variant", "blocks:0.25", "--stage", "79"),
    # A bias of 32 heads and 16,384 rows, and its gradient, would take 64 GiB.
    "policies_bias.json": module("measure.policies", "--variant", "bias", "--stage", "76", "--N", "1024", "2048", "4096"),
    **{f"policies_{of}_{variant.partition(':')[0]}.json": module(
        "measure.policies", "--variant", variant, "--stage", stage, *(("--N", "1024", "2048", "4096") if variant == "bias" else ()))
        for of, stage in (("hopper", "82"), ("hopper_backward", "83"))
        for variant in ("window:1024", "prefix:1024", "documents", "softcap:30", "alibi", "bias", "sinks", "dropout:0.1")},
    "backward_peers_bf16.json": module("measure.compare", "--backward"),
    "profile.json": module("measure.nsight", "--profile"),
    "nsight.json": module("measure.nsight"),
    "ablation_forward.json": module("measure.ablation", "--pass", "forward", "--build", "{build}"),
    "ablation_backward.json": module("measure.ablation", "--pass", "backward", "--build", "{build}"),
    "ablation_hopper.json": module("measure.ablation", "--pass", "hopper", "--build", "{build}"),
    "ablation_hopper_odd.json": module("measure.ablation", "--pass", "hopper", "--only", "19", "24", "25",
                                       "--d", "72", "88", "136", "184", "200", "--build", "{build}"),
    "atomics.json": module("measure.atomics", "--build", "{build}"),
    "train_gpt.json": module("training.train_gpt"),
    "train_gpt_bf16.json": module("training.train_gpt", "--dtype", "bf16"),
    "training.json": module("training.train_throughput", "--attentions", "fa2", "cudnn", "ours", "ours, deterministic",
                            "flash-attn-4"),
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
    # Of the program in that folder are the stages that the commands measure.
    environment = {**os.environ, "FLASHLADDER_PROGRAM": str(chosen.build.resolve() / "flashladder")}
    build = os.path.relpath(chosen.build, ROOT)  # the results keep it: nothing of where they were made
    folder = Path("DIR") if chosen.out is None else chosen.out if chosen.list else chosen.out.resolve()
    for name in chosen.only:
        file = folder / name
        # Google Benchmark empties its file before it begins: what fails is to leave the one that is there.
        unfinished = file if chosen.list else file.with_name(f".{name}")
        values = {"build": build, "file": file, "unfinished": unfinished, "commit": chosen.commit or "HASH"}
        words = [word.format(**values) for word in RESULTS[name]]
        other = "" if build == "build/release" else f"FLASHLADDER_PROGRAM={shlex.quote(f'{build}/flashladder')} "
        print(f"{name}: {other}{shlex.join(words)}", flush=True)
        if chosen.list:
            continue
        begin = time.monotonic()
        try:
            status = subprocess.run(words, cwd=ROOT, env=environment).returncode
        except OSError as error:
            print(f"measure_all: {words[0]} cannot be run: {error.strerror}: ./ladder setup builds it", file=sys.stderr)
            status = 127
        print(f"{name}: {'done' if status == 0 else f'exit status {status}'} after {time.monotonic() - begin:.0f} s\n",
              flush=True)
        if status != 0:
            failed.append(name)
            unfinished.unlink(missing_ok=True)
        elif unfinished.exists():
            write(file, json.loads(unfinished.read_text()))  # one row a line
            unfinished.unlink()
    if failed:
        sys.exit(f"measure_all: failed: {', '.join(failed)}")
    if not chosen.list:
        if folder == FOLDER:
            print("Next: python3 -m bench.report.gpu_report, then the same of bench.report.attribution and "
                  "bench.report.ablation_tables, write the charts and tables")
        elif (folder / "stages.json").exists():
            print(f"Next: python3 -m bench.report.gpu_report --of {shlex.quote(str(chosen.out))} --to DIR makes charts and "
                  "tables of all but profile.json and the ablations")


if __name__ == "__main__":
    main()
