#!/usr/bin/env python3
"""The ledger against a GPU's own counters, stage by stage; with --profile, the counters that say what bounds a stage.

    python3 -m bench.measure.nsight --commit COMMIT --out bench/results/h200/nsight.json
    python3 -m bench.measure.nsight --profile --commit COMMIT --out bench/results/h200/profile.json

The first runs each pass of each stage once under Nsight Compute and once on the emulator, on a square shape and on a
ragged, causal one with grouped heads and Nq != Nk, for each head dimension, and prints both. It exits with 1 unless the
bytes of global memory are equal. The second runs each pass at one shape, with and without a mask, and some of them at
other head dimensions too, and keeps the counters as they come, for bench.report.attribution; with them goes what
predictions.json says before the first run. What FILE has of other stages stays: one that was cut off goes on with
--stages. Both need a GPU and ncu; the program is built by ./ladder.
"""

import argparse
import concurrent.futures
import csv
import io
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

from bench.measure.facts import new_file, nvidia_smi, write
from bench.results.profile import (MANY_HEADS, MASKS, MEASURED, OF_MANY_HEADS, PASSES, PREDICTED_AT, PROFILED, THREADS,
                                   TIME, head_dim, length, problem_at)
from common.course import registry

SHAPES = {
    "square": ["--random", "1,2,256,{d}"],
    "ragged": ["--random", "2,4,130,{d}", "--kv-heads", "2", "--key-len", "203", "--causal"],
}
GLOBAL = "smsp__sass_data_bytes_mem_global_op_"
HARDWARE = {
    "global bytes loaded": [GLOBAL + "ld.sum", GLOBAL + "ldgsts.sum"],
    "global bytes stored": [GLOBAL + "st.sum"],
    "global bytes of atomics": [GLOBAL + "red.sum", GLOBAL + "atom.sum"],
    "global sectors": ["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"],
    "global sectors of atomics": ["l1tex__t_sectors_pipe_lsu_mem_global_op_red.sum",
                                  "l1tex__t_sectors_pipe_lsu_mem_global_op_atom.sum"],
    "shared wavefronts": ["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
                          "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"],
}
HOPPER = {  # of a stage that wgmma is used in; other GPUs have no such counters
    "bytes by TMA": ["l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum"],
    "wavefronts of wgmma": ["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_gmma.sum"],
}
OF_OPCODE = {"wgmmas": "HGMMA", "TMA loads": "UTMALDG"}  # the instructions of a warp, wgmma's of each of four
OPCODES = "sass__inst_executed_per_opcode"
HEAD_DIMS = (32, 64, 96, 128, 256)
MUST_BE_EQUAL = [name for name in HARDWARE if name.startswith("global bytes")]
UNCOUNTED = "logsumexp"  # a kernel that derives L beside an algorithm that has no L
PREDICTIONS = Path(__file__).resolve().parent / "predictions.json"



def run(command):
    try:
        result = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        sys.exit(f"nsight: {command[0]} cannot be run: {error.strerror}; see --ncu and FLASHLADDER_PROGRAM")
    if result.returncode != 0:
        sys.exit(f"nsight: {' '.join(map(str, command))} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


def passes(stage):
    """Each pass of a stage, and the options of ./ladder ledger that choose it."""
    return {name: options for name, options in PASSES.items() if getattr(stage, name)}


def head_dims(stage):
    """Those of HEAD_DIMS that a stage takes."""
    return [d for d in HEAD_DIMS if stage.takes(d)]


def more_head_dims(stage, which, stages):
    """More than that of PROFILED, at which a pass is profiled: of the forward passes the one for the gains that are
    predicted there; of the fastest forward and backward pass at a head dimension those that the two are compared at."""
    compared = [d for d in (128, 256) if stage.takes(d)
                and stage is registry.fastest(which, "bf16", [one for one in stages if one.takes(d)])]
    return [*((PREDICTED_AT,) if which == "forward" else ()), *compared]


def ledger(stage, options):
    said = json.loads(run([registry.program(), "ledger", str(stage), *options, "--banks", "--json"]))
    counts = said["stages"][0]["counts"]

    def total(ending):
        return sum(count for name, count in counts.items() if re.fullmatch(ending, name))

    hopper = {} if counts["wgmmas"] == 0 else {
        "bytes by TMA": counts["tma_read_bytes"],
        "wavefronts of wgmma": counts["wgmma_read_bytes"] // 128,
        "wgmmas": 4 * counts["wgmmas"],
        "TMA loads": counts["tma_loads"],
    }
    return hopper | {
        "global bytes loaded": total(r"global\..*\.distinct_read_bytes"),
        "global bytes stored": total(r"global\..*\.distinct_written_bytes"),
        "global bytes of atomics": total(r"global\..*\.atomic_bytes"),
        "global sectors": total(r"global\..*\.sectors") - total(r"global\..*\.atomic_sectors"),
        "global sectors of atomics": total(r"global\..*\.atomic_sectors"),
        # Without those of cp.async, 8 copies of 16 bytes each, which the GPU does not count with the stores.
        "shared wavefronts": total(r"shared\..*\.wavefronts") - counts["async_copies"] // 8,
        "barriers": counts["barriers"],
    }


def kernels(ncu, metrics, how, stage, options):
    """The units of the metrics, and their values for each kernel that the stage launches. Clocks are left alone."""
    text = run([ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", *how,
                "--metrics", ",".join(metrics), registry.program(), "ledger", str(stage), *options, "--backend", "cuda"])
    if '"ID"' not in text:
        sys.exit(f"nsight: stage {stage} launched no kernel:\n{text}")
    units, *rows = csv.DictReader(io.StringIO(text[text.index('"ID"'):]))
    return units, rows


def whole(text):
    """A count as ncu writes it: '1,024', or '1,024 (0: 1,024)' where it has instances."""
    return int(float(text.split()[0].replace(",", "")))


def hardware(ncu, stage, options, wanted):
    """The counts `wanted` that the GPU has counters for, of all kernels of a stage."""
    counters = {name: columns for name, columns in (HARDWARE | HOPPER).items() if name in wanted}
    metrics = [metric for names in counters.values() for metric in names]
    _, rows = kernels(ncu, [*metrics, THREADS, OPCODES], ["--print-metric-instances", "details"], stage, options)
    counts = dict.fromkeys([*counters, *(name for name in OF_OPCODE if name in wanted)], 0)
    barriers = 0
    for row in rows:
        if UNCOUNTED in row["Kernel Name"]:
            continue
        for name, columns in counters.items():
            for metric in columns:
                counts[name] += whole(row[metric])
        for name, opcode in OF_OPCODE.items():
            if name in counts:
                counts[name] += sum(whole(found) for found in re.findall(rf"\b{opcode}: ([\d,]+)", row.get(OPCODES) or ""))
        match = re.search(r"\bBAR: ([\d,]+)", row.get(OPCODES) or "")
        if match:
            barriers += whole(match[1]) // (whole(row[THREADS]) // 32)
    if barriers:
        counts["barriers"] = barriers
    return counts


def number(row, metric, where):
    """What ncu says of this metric, which writes n/a, or nothing, where it has no value."""
    text = row.get(metric) or ""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        sys.exit(f"nsight: ncu gives '{text}' for {metric} of {where}: see whether this GPU has it, "
                 "with ncu --query-metrics")
    return value


def begun(path):
    """What is in the file already, of this GPU; else what a profile begins with. Predictions that it was begun with
    stay, whatever is predicted since."""
    data = {**machine(), "problem": PROFILED, "predictions": json.loads(PREDICTIONS.read_text()), "profiles": []}
    if not path.exists():
        return data
    try:
        kept = json.loads(path.read_text())
        same = all(kept[key] == data[key] for key in ("gpu", "driver", "problem"))
        data["predictions"] |= kept["predictions"]
        data["profiles"] = kept["profiles"]
    except (ValueError, KeyError, TypeError):
        same = False
    if not same:
        sys.exit(f"nsight: {path} is no profile of this GPU, driver and problem, and is left as it is: give another --out")
    return data


def profile(arguments):
    """Every counter of MEASURED, for each kernel of each stage, with and without a mask; written after each run, to what
    the file has of other stages."""
    data = begun(arguments.out)
    for stage in stages_of_kernels(arguments):
        runs = [(which, problem_at(d), mask) for which in passes(stage)
                for d in (PROFILED["d"], *more_head_dims(stage, which, registry.all_stages())) for mask in MASKS]
        if stage.number in OF_MANY_HEADS:
            runs.append(("forward", MANY_HEADS, "full"))
        for which, at, mask in runs:
            N, d = at["N"], at["d"]
            where = f"stage {stage.number}, {which} pass, N = {N}, d = {d}, {mask}"
            problem = "{batch},{heads},{N},{d}".format(**at)
            dtype = stage.dtypes[-1]  # bf16 on tensor cores, as in the tables of speed
            units, rows = kernels(arguments.ncu, MEASURED, ["--print-kernel-base", "function"], stage.number,
                                  ["--random", problem, "--dtype", dtype, *MASKS[mask], *PASSES[which]])
            if units[TIME] not in ("ns", "nsecond"):
                sys.exit(f"nsight: ncu gives times in {units[TIME]}, not in ns: this script must learn that unit")
            found = [{"name": row["Kernel Name"],
                      "counters": {metric: number(row, metric, where) for metric in MEASURED}} for row in rows]
            print(f"{where}: {', '.join(kernel['name'] for kernel in found)}", flush=True)
            mine = {"stage": stage.number, "pass": which, "mask": mask, "d": d, "N": N}
            others = [one for one in data["profiles"]
                      if any({**one, "d": head_dim(one), "N": length(one)}[key] != mine[key] for key in mine)]
            new = {**mine, "before": stage.before, "dtype": dtype, "commit": arguments.commit, "kernels": found}
            data["profiles"] = sorted([*others, new], key=lambda one: (one["stage"], one["pass"] == "backward",
                                                                       head_dim(one), length(one)))
            write(arguments.out, data)


def stages_of_kernels(arguments):
    """Those that were named, or all that this GPU runs."""
    chosen = [stage for stage in registry.all_stages() if stage.kernels
              and (arguments.stages is None or stage.number in arguments.stages)]
    if not chosen:
        sys.exit("nsight: none of these stages is of kernels: ./ladder list shows all stages")
    capability, = nvidia_smi("compute_cap") or ("",)
    left_out = [stage for stage in chosen if stage.gpu == "hopper" and capability != "9.0" and arguments.stages is None]
    for stage in left_out:
        print(f"left out: stage {stage.label}, which does not run on this GPU")
    return [stage for stage in chosen if stage not in left_out]


def machine():
    """Name and driver of the GPU present."""
    found = nvidia_smi("name", "driver_version")
    if not found:
        sys.exit("nsight: nvidia-smi finds no GPU: the counters are a GPU's")
    return dict(zip(("gpu", "driver"), found))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ncu", default="ncu", help="Nsight Compute")
    parser.add_argument("--stages", nargs="+", type=int, help="their numbers (default: all of kernels)")
    parser.add_argument("--out", type=new_file, help="write everything to this JSON file")
    parser.add_argument("--profile", action="store_true", help="collect what bounds each stage; with --commit, --out")
    parser.add_argument("--commit", help="the commit that the program was built from")
    arguments = parser.parse_args()
    if arguments.profile and not arguments.out:
        parser.error("--profile needs --out FILE: its counters are kept")
    if arguments.out and not arguments.commit:
        parser.error("--out needs --commit COMMIT: what is kept says what was measured")
    if arguments.profile:
        return profile(arguments)

    of = machine() if arguments.out else {}  # before the work
    runs = [(stage.number, which, shape, d, [*(word.format(d=d) for word in template), *chosen])
            for stage in stages_of_kernels(arguments)
            for which, chosen in passes(stage).items()
            for shape, template in SHAPES.items()
            for d in head_dims(stage)]

    def both(run):
        stage, *_, options = run
        ours = ledger(stage, options)
        return ours, hardware(arguments.ncu, stage, options, ours)

    results, differ = [], []
    print("| stage | pass | shape | d | count | ledger | hardware | |\n|---|---|---|---|---|---|---|---|")
    # Side by side: ncu itself lets one kernel at a time run under it, and what is counted here is no time.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as side_by_side:
        for (stage, which, shape, d, _), (ours, theirs) in zip(runs, side_by_side.map(both, runs)):
            for name, count in ours.items():
                if name not in theirs:
                    continue
                other = theirs[name]
                results.append({"stage": stage, "pass": which, "shape": shape, "d": d, "count": name,
                                "ledger": count, "hardware": other})
                equal = count == other
                if not equal and name in MUST_BE_EQUAL:
                    differ.append(f"stage {stage}, {which} pass, {shape}, d = {d}: {name}: {count} and {other}")
                if count or other:
                    note = "equal" if equal else f"x{other / count:.3f}" if count else "differs"
                    print(f"| {stage} | {which} | {shape} | {d} | {name} | {count} | {other} | {note} |", flush=True)
    if arguments.out:
        write(arguments.out, {"gpu": ", ".join(of.values()), "commit": arguments.commit,
                              "shapes": SHAPES, "results": results})
    if differ:
        sys.exit("global bytes differ:\n" + "\n".join(differ))


if __name__ == "__main__":
    try:
        main()
    except registry.Failure as failure:
        sys.exit(f"nsight: {failure}")
