"""Stages and their peers on one GPU: interleaved in one process, on the same tensors, with the same warm-up and pace.

    pip install . && python3 -m bench.measure.compare --out comparison.json
    python3 -m bench.measure.compare --backward --out backward.json
    python3 -m bench.measure.compare --busy --out busy.json

Peers are the backends of PyTorch's scaled_dot_product_attention: FlashAttention-2, cuDNN, memory-efficient, math; and
the packages flash-attn and flash-attn-4, which is FlashAttention-4 for Hopper and newer GPUs, where they are installed.
One that is absent, or does not take a shape, is said to be absent. What a peer compiles at its first call is not timed.
A stage that is not right is never timed. Shapes are square, because PyTorch's causal mask is aligned at the top left.
A ratio counts only from one run.

The power that a GPU may take sets its clock, so that a speed has a pace. Rested: before each launch one thread of the GPU
waits for 10 ms, and all others have nothing to do; meanwhile the host is done with the launch. Then the L2 cache is
emptied. --busy: what is measured is launched back to back, without either; a launch must take longer than the host needs
for the next one. Of busy runs the clock of the multiprocessors is kept, too, as nvidia-smi samples it: a rested run is too
short for that, and bench.measure.nsight --profile has its clock. Who comes first in a round changes by chance.

--backward times the backward pass alone: of a peer, the gradients of a graph that is kept; of a stage, what it makes of O
and L, and of what else it needs of the forward pass, which is made before. Its FLOPs count 2.5 times the forward pass's.
"""

import argparse
import math
import random
import statistics
import sys
import time
from contextlib import nullcontext

from bench.measure.facts import Clocks, commit_of, new_file, write
from bench.measure.on_torch import (Missing, backends, device_of, libraries, machine, milliseconds, most_flops, peer,
                                    wrong_gradients, wrong_output)
from bench.results.gpu import TOKENS, WIDTH
from common.course.registry import FIRST_VARIANT, folders, needs_hopper, of_kernels, source_text

FLUSH_BYTES = 512 << 20      # larger than any L2 cache, and long enough for the next launch to be queued behind it
FLUSHES = 2  # before each rested run
REST_CYCLES = 20_000_000  # and before these: 10 ms at 2 GHz
BUSY_MS = 200  # of launches back to back, of which the second half is timed
LENGTHS = {"rested": [512, 1024, 2048, 4096, 8192, 16384], "busy": [2048, 16384]}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--backward", action="store_true", help="the backward pass instead of the forward pass")
    parser.add_argument("--stages", nargs="+", type=int,
                        help="default: all of kernels that have the pass in this dtype")
    parser.add_argument("--hopper", action="store_true", help="only those of plain attention that need Hopper")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="fp32 for the stages on CUDA cores (bf16)")
    parser.add_argument("--d", nargs="+", type=int, default=[64, 128, 256])
    parser.add_argument("--peers", nargs="*", metavar="PEER", help="only these (all)")
    parser.add_argument("--busy", action="store_true", help="launches back to back, and not rested")
    parser.add_argument("--N", nargs="+", type=int, help="512 1024 ... 16384; with --busy 2048 16384")
    parser.add_argument("--rounds", type=int, default=10, help="runs, or series of them, of each (10)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to try this script out (cuda)")
    parser.add_argument("--commit", help="what the stages were built from; asked of git where left out")
    parser.add_argument("--out", type=new_file, help="write everything to this JSON file")
    chosen = parser.parse_args()
    chosen.pace = "busy" if chosen.busy else "rested"
    chosen.N = chosen.N or LENGTHS[chosen.pace]
    if chosen.busy and chosen.device == "cpu":
        parser.error("--busy is of a GPU: leave it out, or --device cpu")
    if chosen.rounds < 1:
        parser.error("--rounds is to be at least 1")
    for N in chosen.N:
        if N < 1 or TOKENS % N:
            parser.error(f"--N {N} does not divide batch * N, which is {TOKENS}")
    for d in chosen.d:
        if not 1 <= d <= WIDTH:
            parser.error(f"--d {d}: give 1 to {WIDTH}, which heads * d is, or a little less")
    return chosen


def chosen_peers(names):
    """Those of these names; None: all."""
    return {name: backend for name, backend in backends().items() if names is None or name in names}


def forward_contenders(torch, flashladder, stages, peers, q, k, v, causal):
    """Name and function of everything that is compared on these tensors, and of what is wrong with what that returns."""
    all_ = {f"stage {number}": lambda number=number: flashladder.forward(number, q, k, v, causal=causal)[0]
            for number in stages}
    all_ |= {name: lambda backend=backend: peer(backend)(q, k, v, causal) for name, backend in chosen_peers(peers).items()}
    return all_, lambda o: wrong_output(torch, o, q, k, v, causal)


def backward_contenders(torch, flashladder, stages, peers, q, k, v, causal):
    """The same, of the backward pass. What goes before it is made by the first call of each, which is not timed."""
    do = torch.randn_like(q)
    made = {}

    def stage(number):
        if number not in made:
            forward, backward = flashladder.torch.stages_for(q, (None, number))
            o, lse = flashladder.forward(forward, q, k, v, causal=causal)
            made[number] = o, lse, flashladder.saved(backward, q, k, causal)
        o, lse, saved = made[number]
        return flashladder.backward(number, q, k, v, o, lse, do, causal=causal, saved=saved)

    def gradients(name, backend):
        if name not in made:
            inputs = [x.detach().requires_grad_() for x in (q, k, v)]
            made[name] = peer(backend)(*inputs, causal), inputs
        o, inputs = made[name]
        return torch.autograd.grad(o, inputs, do, retain_graph=True)

    all_ = {f"stage {number}": lambda number=number: stage(number) for number in stages}
    all_ |= {name: lambda name=name, backend=backend: gradients(name, backend) for name, backend in chosen_peers(peers).items()}
    return all_, lambda found: wrong_gradients(torch, found, q, k, v, do, causal)


def rested_round(torch, runs, flush):
    """Milliseconds of each, and no clock."""
    events = {}
    for name, run in runs.items():
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(REST_CYCLES)
        for _ in range(FLUSHES):
            flush.zero_()
        begin.record()
        try:
            run()
        except torch.OutOfMemoryError:  # beside the others' results there is less than when it was alone
            continue
        end.record()
        events[name] = begin, end
    torch.cuda.synchronize()
    return {name: (begin.elapsed_time(end), None) for name, (begin, end) in events.items()}


def busy_round(torch, runs, clocks):
    """Milliseconds of each, and the clock of the multiprocessors in GHz."""
    found = {}
    for name, run in runs.items():
        try:
            half = math.ceil(BUSY_MS / 2 / milliseconds(torch, run, "cuda"))
            for _ in range(half):
                run()
            torch.cuda.synchronize()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start = time.monotonic()
            begin.record()
            for _ in range(half):
                run()
            end.record()
            torch.cuda.synchronize()
        except torch.OutOfMemoryError:
            continue
        found[name] = begin.elapsed_time(end) / half, clocks.ghz(start, time.monotonic())
    return found


def measure(torch, runs, rounds, device, pace):
    """Milliseconds and clock of each function, in every round one after the other; of one that does not fit into memory
    nothing."""
    found, chance = {name: [] for name in runs}, random.Random(1)
    flush = torch.empty(FLUSH_BYTES if device == "cuda" and pace == "rested" else 0, dtype=torch.int8, device=device)
    with Clocks() if pace == "busy" else nullcontext() as clocks:
        for turn in range(rounds + 1):
            order = {name: runs[name] for name in chance.sample(list(found), len(found))}
            if device == "cpu":
                one = {name: (milliseconds(torch, run, device), None) for name, run in order.items()}
            else:
                one = busy_round(torch, order, clocks) if pace == "busy" else rested_round(torch, order, flush)
            found = {name: all_ + [one[name]] * (turn > 0) for name, all_ in found.items() if name in one}  # 0: warm-up
    return found


def speed_of(times, flops):
    """What a result keeps of the milliseconds of some runs of so many FLOPs."""
    quartiles = statistics.quantiles(times, n=4) if len(times) > 1 else 3 * times
    return {"tflops": flops / quartiles[1] / 1e9, "ms": quartiles[1], "ms_lower_quartile": quartiles[0],
            "ms_upper_quartile": quartiles[2], "runs": len(times)}


def source_of(stage):
    """The text of a stage of kernels."""
    return source_text(folders()[stage.number] / "attention.cu")


def chosen_stages(flashladder, chosen):
    """Their numbers. Throws Missing where one that was asked for cannot be compared."""
    which = "backward" if chosen.backward else "forward"
    stages = of_kernels(which, DTYPES[chosen.dtype], flashladder.stages())
    if chosen.hopper:
        stages = [one for one in stages if one.number < FIRST_VARIANT and needs_hopper(source_of(one))]
    here = [one for one in stages if chosen.device == "cpu" or "cuda" in one.backends] or stages
    for one in stages:
        if one not in here and not chosen.stages:
            print(f"left out: stage {one}, which does not run on this GPU")
    found = [one.number for one in here]
    if not found:
        raise Missing(f"no stage of this build has a {which} pass in {chosen.dtype}: ./ladder list says what each takes")
    if others := sorted({*(chosen.stages or [])} - {*found}):
        raise Missing(f"no {which} pass in {chosen.dtype} of kernels that runs here: stage {', '.join(map(str, others))}; "
                      f"those that have one are {', '.join(map(str, found))}")
    return chosen.stages or found


def rows_of(torch, flashladder, chosen, stages, d, causal, N):
    """What is measured at one shape: a row for each contender."""
    shape = {"d": d, "causal": causal, "N": N}
    torch.manual_seed(1)
    dtype = getattr(torch, DTYPES[chosen.dtype])
    q, k, v = (torch.randn(TOKENS // N, WIDTH // d, N, d, dtype=dtype, device=chosen.device) for _ in range(3))
    contenders = backward_contenders if chosen.backward else forward_contenders
    all_, judge = contenders(torch, flashladder, stages, chosen.peers, q, k, v, causal)
    runs, absent = {}, {}
    for name, run in all_.items():
        try:
            why = judge(run())
        except Exception as error:  # a peer's own error, of whatever kind
            why = str(error).split("\n")[0] or type(error).__name__
        if why:
            absent[name] = why
        else:
            runs[name] = run
    batch, heads, _, _ = q.shape
    flops = 4 * N * N * d * batch * heads / (2 if causal else 1) * (2.5 if chosen.backward else 1)
    measured = measure(torch, runs, chosen.rounds, chosen.device, chosen.pace)
    absent |= {name: "this GPU has too little memory for it" for name in runs if name not in measured}
    most = most_flops(torch, dtype) if chosen.device == "cuda" else None  # a clock
    rows = []
    for name in all_:
        if name in absent:
            rows.append(shape | {"name": name, "absent": absent[name]})
            continue
        times, clocks = zip(*measured[name])
        row = shape | {"name": name, **speed_of(times, flops)}
        if clocks := [ghz for ghz in clocks if ghz]:
            row["sm_ghz"] = statistics.median(clocks)
            if most:
                row["share"] = row["tflops"] * 1e3 / (most * row["sm_ghz"])
        rows.append(row)
    return rows


def main():
    chosen = arguments()
    torch, flashladder = libraries()
    device_of(torch, chosen.device)
    if unknown := sorted({*(chosen.peers or [])} - {*backends()}):
        raise Missing(f"--peers {unknown[0]}: there is none of this name; those that there are: {', '.join(backends())}")
    stages = chosen_stages(flashladder, chosen)
    base = "memory-efficient" if chosen.dtype == "fp32" else "fa2"  # FlashAttention-2 does not take fp32
    names = [f"stage {number}" for number in stages] + list(chosen_peers(chosen.peers))
    context = {**machine(torch, commit_of(chosen.commit)), "dtype": chosen.dtype, "batch*N": TOKENS, "heads*d": WIDTH,
               "rounds": chosen.rounds, "pace": chosen.pace, "pass": "backward" if chosen.backward else "forward"}
    results = []
    print(f"{context['pass']} pass, {chosen.pace}, TFLOP/s; in brackets over {base}\n| d | mask | N | " + " | ".join(names) + " |\n"
          + "|---" * (len(names) + 3) + "|")
    for d in chosen.d:
        for causal in (False, True):
            for N in chosen.N:
                rows = rows_of(torch, flashladder, chosen, stages, d, causal, N)
                results += rows
                speed = {row["name"]: row["tflops"] for row in rows if "tflops" in row}
                cells = ["absent" if name not in speed else f"{speed[name]:.{0 if speed[name] >= 10 else 3}f}" +
                         (f" ({speed[name] / speed[base]:.2f})" if base in speed else "") for name in names]
                print(f"| {d} | {'causal' if causal else 'full'} | {N} | " + " | ".join(cells) + " |", flush=True)
                if chosen.out:  # what is known must not be lost
                    write(chosen.out, {"context": context, "results": results})
                if chosen.device == "cuda":
                    torch.cuda.empty_cache()
    for name in names:
        ratios = [one["tflops"] / other["tflops"] for one in results if one["name"] == name and "tflops" in one
                  for other in results if other["name"] == base and "tflops" in other and
                  (one["d"], one["causal"], one["N"]) == (other["d"], other["causal"], other["N"])]
        if ratios:
            print(f"{name}: {statistics.geometric_mean(ratios):.3f} of {base} in the geometric mean of {len(ratios)} "
                  f"shapes, {min(ratios):.3f} to {max(ratios):.3f}")
        clocks = [one["sm_ghz"] for one in results if one["name"] == name and "sm_ghz" in one]
        shares = [one["share"] for one in results if one["name"] == name and "share" in one]
        if clocks:
            print(f"{name}: clock of the multiprocessors {min(clocks):.2f} to {max(clocks):.2f} GHz" +
                  (f", {min(shares):.0%} to {max(shares):.0%} of the tensor cores' rate at that clock" if shares else ""))
    for reason in sorted({f"{one['name']}: {one['absent']}" for one in results if "absent" in one}):
        print("absent:", reason)
    absent = [one["absent"] for one in results if "absent" in one and one["name"].startswith("stage")]
    if any("out of memory" not in why and "does not take head dimension" not in why for why in absent):
        sys.exit("compare: a stage failed")


if __name__ == "__main__":
    try:
        main()
    except Missing as failure:
        sys.exit(f"compare: {failure}")
