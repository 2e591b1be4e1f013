"""What each idea of a tuned pass is worth: its stage without one of them at a time, timed in turns with the whole.
And what ideas would bring that the tuned stage on Hopper does not have: that stage with one of them at a time.

    python3 -m bench.measure.ablation --pass forward --out bench/results/h200/ablation_forward.json    # on a GPU
    python3 -m bench.measure.ablation --pass hopper --out bench/results/h200/ablation_hopper.json
    python3 -m bench.measure.ablation --pass hopper --only 19 20 21 --out clusters.json
    python3 -m bench.measure.ablation --pass hopper --only 19 24 25 --d 72 88 136 184 200 \
        --out bench/results/h200/ablation_hopper_odd.json

Without an idea, or with one, means: one of bench/variants/ablations/PASS/*.patch, or another tile for all head
dimensions. bench.report.ablation_tables writes the tables of the READMEs, and of docs/did_not_pay.md, from these files.
"""

import argparse
import re
import statistics
import sys
import tempfile
from pathlib import Path

from bench.measure.facts import gpu, new_file, write_result
from bench.variants.tuned import SHARED_BYTES, fastest_on_hopper, tuned
from bench.variants.variants import (VariantError, make_all, measure, problem, read_table, small_problems,
                                     with_rows)
from common.course.registry import ROOT

PATCHES = ROOT / "bench/variants/ablations"
HEAD_DIMS = (64, 128, 256)
LENGTHS = {"forward": (1024, 4096, 16384), "backward": (1024, 4096, 16384), "hopper": (512, 2048, 16384)}
# Ideas that are a tile, by pass: what they leave out, and what changes in the tile without.
TILES = {
    "forward": {
        "16 rows a warp, not 32, and so 64 a tile, not 128: each fragment of K and V serves one product, and twice as "
        "many bytes of K and V are copied": lambda t: {"Br": 16 * t["warps"]},
        "the other number of buffers of K and V": lambda t: {"num_buffers": 3 - t["num_buffers"]},
        "another number of steps over d unrolled, 4 for 2, else half":
            lambda t: {"unroll": t["unroll"] // 2 if t["unroll"] > 2 else 4}},
    "backward": {
        "half as many keys a tile: a fragment of Q and dO serves half the products, and twice as many bytes of Q, dO "
        "and dQ travel": lambda t: {"Bc": t["Bc"] // 2},
        "the other number of buffers of Q and dO": lambda t: {"num_buffers": 3 - t["num_buffers"]},
        "half as many rows of S at a time": lambda t: {"step": max(16, t["step"] // 2)},
        "another number of steps over d unrolled, 2 for 1, else half": lambda t: {"unroll": t["unroll"] // 2 or 2}},
    "hopper": {}}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pass", dest="which", choices=list(TILES), required=True,
                        help="of which the tuned stage is measured; hopper: the last stage forward on Hopper with a table of tiles")
    parser.add_argument("--out", type=new_file, required=True, help="the JSON file to write")
    parser.add_argument("--commit", help="what is measured; asked of git where left out")
    parser.add_argument("--rounds", type=int, default=11, help="runs of each variant and shape (11)")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", help="build folder (build/release)")
    parser.add_argument("--d", nargs="+", type=int, default=HEAD_DIMS, metavar="D",
                        help="head dimensions; hopper: multiples of 8 from 16 to 256 (64 128 256)")
    parser.add_argument("--only", nargs="+", metavar="NUMBER",
                        help="the patches whose names begin with these, and no other tiles (all)")
    args = parser.parse_args()
    known = {number_of(path) for path in patches(stage_of(args.which))}
    if unknown := {*(args.only or known)} - known:
        parser.error(f"--only: there is no patch {min(unknown)} of this pass: they are {' '.join(sorted(known))}")
    if args.which != "hopper" and {*args.d} - {*HEAD_DIMS}:
        parser.error(f"--d: pass {args.which} is measured for d of {', '.join(map(str, HEAD_DIMS))}")
    if any(d % 8 or not 16 <= d <= 256 for d in args.d):
        parser.error("--d takes multiples of 8 from 16 to 256")
    if args.rounds < 1:
        parser.error("--rounds takes a number from 1 on")
    return args


def stage_of(which):
    return fastest_on_hopper() if which == "hopper" else tuned(which)


def number_of(patch):
    """As --only has it."""
    return patch.name.partition("_")[0]


def patches(stage, only=None):
    """Those of a stage, or only the ones with these numbers."""
    return [path for path in sorted((PATCHES / stage.which).glob("*.patch")) if only is None or number_of(path) in only]


def changes(path, d, causal):
    """Whether a patch changes anything there: its second line may say `Only: d = 64, 128`, or `Only: causal`."""
    only = re.match(r".*\nOnly: (.*)", path.read_text())
    return only is None or bool({str(d), "causal" if causal else "full"} & {*re.findall(r"\w+", only[1])})


def variants(stage, facts, only=None):
    """Name and what is to be compiled of each: the whole, with a patch, with another tile. `only`: with these patches."""
    if why := stage.does_not_run(facts["architecture"]):
        raise VariantError(why)
    if stage.which == "hopper":
        yield "", {}
        for path in patches(stage, only):
            yield path.read_text().splitlines()[0], {"patch": path}
        return
    text = stage.table.read_text()
    rows = [row for row in read_table(stage) if (row["architecture"], row["dtype"]) == (facts["architecture"], "bf16")
            and row["d"] in HEAD_DIMS]
    if not rows:
        raise VariantError(f"the table of stage {stage.number} has no rows for this GPU: ./ladder tune makes them")
    yield "", {"table": with_rows(text, rows)}
    for path in patches(stage, only):
        yield path.read_text().splitlines()[0], {"table": with_rows(text, rows), "patch": path}
    for what, change in (TILES[stage.which] if only is None else {}).items():
        fit = []
        for row in rows:
            tile = dict(zip(stage.fields, row["tile"], strict=True))
            other = [*{**tile, **change(tile)}.values()]
            if other != row["tile"] and not stage.does_not_fit(other, row["d"], SHARED_BYTES[facts["architecture"]]):
                fit.append({**row, "tile": other})
        if fit:
            yield what, {"table": with_rows(text, fit)}


def measured(args, facts, folder, say):
    stage, names, orders = stage_of(args.which), {}, []
    for i, (what, order) in enumerate(variants(stage, facts, args.only)):
        names[f"{i:02}"] = what
        orders.append({"stage": stage, "folder": folder, "name": f"{i:02}", "build": args.build, "backend": "cuda",
                       "architecture": facts["architecture"], **order})
    say(f"Compiling {len(orders)} variants ...")
    made = {one["name"]: one for one in make_all(orders, say)}
    patch_of = {order["name"]: order.get("patch") for order in orders}

    def kernel_for(name, d, causal):
        """What ptxas says of the kernel of a variant that takes d, on Hopper the next one that is as large, if a patch takes no
        other. None: it has none, or is the stage there."""
        kernels = [one for one in made[name]["kernels"] if one["dtype"] == "bf16" and one["causal"] == causal
                   and (one["d"] >= d if args.which == "hopper" else one["d"] == d)]
        if not kernels or patch_of[name] is not None and not changes(patch_of[name], d, causal):
            return None
        return min(kernels, key=lambda one: one["d"])

    groups = [(d, causal) for d in args.d for causal in (False, True)]
    tasks = []
    for d, causal in groups:
        has = [one["library"] for one in made.values() if kernel_for(one["name"], d, causal)]
        tasks.append({"libraries": has, "check": small_problems(stage, d, causal, "bf16"),
                      "time": [problem(d, causal, "bf16", N) for N in LENGTHS[args.which]]})
    say("Checking and timing ...")
    found, word = [], "with" if args.which == "hopper" else "without"
    results = measure(args.build, folder, tasks, args.rounds, say, rested=args.which == "hopper")
    for (d, causal), result in zip(groups, results, strict=True):
        whole = [statistics.median(ms) for ms in result[made["00"]["library"]]["ms"]]
        for name, one in made.items():
            if one["library"] not in result:
                continue
            row = {word: names[name], "d": d, "causal": causal, "spilled": kernel_for(name, d, causal)["spilled"]}
            if result[one["library"]]["wrong"]:
                raise VariantError(f"{word} '{names[name]}' the stage is not right: {result[one['library']]['wrong']}")
            row["ratio"] = [statistics.median(ms) / base for ms, base in
                            zip(result[one["library"]]["ms"], whole, strict=True)]
            found.append(row)
    return sorted(found, key=lambda row: [*names.values()].index(row[word]))


def main():
    args, facts = arguments(), gpu()
    with tempfile.TemporaryDirectory(prefix="flashladder-ablation-") as folder:
        rows = measured(args, facts, folder, lambda text: print(text, file=sys.stderr, flush=True))
    pace = {"pace": "rested"} if args.which == "hopper" else {}
    write_result(args.out, facts, args.commit, **pace, d=[*args.d], lengths=LENGTHS[args.which], rounds=args.rounds, rows=rows)


if __name__ == "__main__":
    try:
        main()
    except VariantError as error:
        sys.exit(f"ablation: {error}")
