#!/usr/bin/env python3
"""The ledger against a GPU's own counters, stage by stage.

Runs each stage once under Nsight Compute and once on the emulator, on a square shape and on a ragged, causal one with
grouped heads and Nq != Nk, for each head dimension, and prints both. Exits with 1 unless the bytes of global memory are
equal. Needs a GPU and ncu; the program is built by ./ladder.
"""

import argparse
import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
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
    "shared wavefronts": ["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
                          "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"],
}
OPCODES = "sass__inst_executed_per_opcode"
MUST_BE_EQUAL = [name for name in HARDWARE if name.startswith("global bytes")]
WARPS_OF_A_BLOCK = 4
UNCOUNTED = "logsumexp"  # stage 11's L, which it derives beside the algorithm


def run(command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"nsight: {' '.join(map(str, command))} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


def ledger(program, stage, options):
    counts = json.loads(run([program, "ledger", stage, *options, "--banks", "--json"]))["stages"][0]["counts"]

    def total(ending):
        return sum(count for name, count in counts.items() if re.fullmatch(ending, name))

    return {
        "global bytes loaded": total(r"global\..*\.distinct_read_bytes"),
        "global bytes stored": total(r"global\..*\.distinct_written_bytes"),
        "global bytes of atomics": total(r"global\..*\.atomic_bytes"),
        "global sectors": total(r"global\..*\.sectors"),
        "shared wavefronts": total(r"shared\..*\.wavefronts"),
        "barriers": counts["barriers"],
    }


def hardware(ncu, program, stage, options):
    metrics = [metric for names in HARDWARE.values() for metric in names]
    text = run([ncu, "--csv", "--page", "raw", "--print-units", "base", "--print-metric-instances", "details",
                "--metrics", ",".join([*metrics, OPCODES]), program, "ledger", stage, *options, "--backend", "cuda"])
    table = text[text.index('"ID"'):]
    rows = list(csv.DictReader(io.StringIO(table)))[1:]  # the first holds the units
    counts = dict.fromkeys(HARDWARE, 0)
    barriers = 0
    kernels = []
    for row in rows:
        if UNCOUNTED in row["Kernel Name"]:
            continue
        kernels.append(row["Kernel Name"])
        for name, columns in HARDWARE.items():
            for metric in columns:
                counts[name] += int(float(row[metric].replace(",", "")))
        match = re.search(r"\bBAR: ([\d,]+)", row.get(OPCODES) or "")
        if match:
            barriers += int(match[1].replace(",", "")) // WARPS_OF_A_BLOCK
    if not kernels:
        sys.exit(f"nsight: stage {stage} launched no kernel:\n{text}")
    if barriers:
        counts["barriers"] = barriers
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default=ROOT / "build/release/flashladder", help="the program behind ./ladder")
    parser.add_argument("--ncu", default="ncu", help="Nsight Compute")
    parser.add_argument("--stages", nargs="+", default=["10", "11", "12", "13", "14", "15"])
    parser.add_argument("--out", type=Path, help="write everything to this JSON file")
    arguments = parser.parse_args()

    results, differ = [], []
    print("| stage | shape | d | count | ledger | hardware | |\n|---|---|---|---|---|---|---|")
    for stage in arguments.stages:
        for shape, template in SHAPES.items():
            for d in (32, 64, 128):
                options = [word.format(d=d) for word in template]
                ours = ledger(arguments.program, stage, options)
                theirs = hardware(arguments.ncu, arguments.program, stage, options)
                for name, count in ours.items():
                    if name not in theirs:
                        continue
                    other = theirs[name]
                    results.append({"stage": int(stage), "shape": shape, "d": d, "count": name, "ledger": count,
                                    "hardware": other})
                    equal = count == other
                    if not equal and name in MUST_BE_EQUAL:
                        differ.append(f"stage {stage}, {shape}, d = {d}: {name}: {count} and {other}")
                    if count or other:
                        note = "equal" if equal else f"x{other / count:.3f}" if count else "differs"
                        print(f"| {stage} | {shape} | {d} | {name} | {count} | {other} | {note} |", flush=True)
    if arguments.out:
        gpu = run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]).strip()
        arguments.out.write_text(json.dumps({"gpu": gpu, "shapes": SHAPES, "results": results}, indent=1) + "\n")
    if differ:
        sys.exit("global bytes differ:\n" + "\n".join(differ))


if __name__ == "__main__":
    main()
