"""Stages and their peers on one GPU: interleaved in one process, on the same tensors, with the same warm-up and flush.

    pip install . && python3 -m bench.measure.compare --out comparison.json
    python3 -m bench.measure.compare --backward --out backward.json

Peers are the backends of PyTorch's scaled_dot_product_attention: FlashAttention-2, cuDNN, memory-efficient, math; and
the packages flash-attn and flash-attn-4, which is FlashAttention-4 for Hopper and newer GPUs, where they are installed.
One that is absent, or does not take a shape, is said to be absent. What a peer compiles at its first call is not timed.
A stage that is not right is never timed. Shapes are square, because PyTorch's causal mask is aligned at the top left.
A ratio counts only from one run.

--backward times the backward pass alone: of a peer, the gradients of a graph that is kept; of a stage, what it makes of O
and L, and of what else it needs of the forward pass, which is made before. Its FLOPs count 2.5 times the forward pass's.
"""

import argparse
import statistics
import sys

from bench.measure.facts import commit_of, new_file, write
from bench.measure.on_torch import (Missing, backends, device_of, libraries, machine, milliseconds, peer,
                                    wrong_gradients, wrong_output)
from bench.results.gpu import TOKENS, WIDTH
from common.course.registry import folders, needs_hopper, of_kernels, source_text

FLUSH_BYTES = 512 << 20      # larger than any L2 cache, and long enough for the next launch to be queued behind it
FLUSHES = 2  # before each run
HEAD_START = 16  # flushes before each round: else the GPU would wait for the host, and its first run be timed with that
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--backward", action="store_true", help="the backward pass instead of the forward pass")
    parser.add_argument("--stages", nargs="+", type=int,
                        help="default: all of kernels that have the pass in this dtype")
    parser.add_argument("--hopper", action="store_true", help="only those that need Hopper")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="fp32 for the stages on CUDA cores (bf16)")
    parser.add_argument("--d", nargs="+", type=int, default=[64, 128, 256])
    parser.add_argument("--N", nargs="+", type=int, default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to try this script out (cuda)")
    parser.add_argument("--commit", help="what the stages were built from; asked of git where left out")
    parser.add_argument("--out", type=new_file, help="write everything to this JSON file")
    chosen = parser.parse_args()
    if chosen.rounds < 1:
        parser.error("--rounds is to be at least 1")
    for N in chosen.N:
        if N < 1 or TOKENS % N:
            parser.error(f"--N {N} does not divide batch * N, which is {TOKENS}")
    for d in chosen.d:
        if d < 1 or WIDTH % d:
            parser.error(f"--d {d} does not divide heads * d, which is {WIDTH}")
    return chosen


def forward_contenders(torch, flashladder, stages, q, k, v, causal):
    """Name and function of everything that is compared on these tensors, and of what is wrong with what that returns."""
    all_ = {f"stage {number}": lambda number=number: flashladder.forward(number, q, k, v, causal=causal)[0]
            for number in stages}
    all_ |= {name: lambda backend=backend: peer(backend)(q, k, v, causal) for name, backend in backends().items()}
    return all_, lambda o: wrong_output(torch, o, q, k, v, causal)


def backward_contenders(torch, flashladder, stages, q, k, v, causal):
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
    all_ |= {name: lambda name=name, backend=backend: gradients(name, backend) for name, backend in backends().items()}
    return all_, lambda found: wrong_gradients(torch, found, q, k, v, do, causal)


def measure(torch, runs, rounds, device):
    """Milliseconds of each function, one after the other in every round."""
    times, out_of_memory = {name: [] for name in runs}, set()
    flush = torch.empty(FLUSH_BYTES if device == "cuda" else 1, dtype=torch.int8, device=device)
    for turn in range(rounds + 2):
        events = {}
        for _ in range(HEAD_START if device == "cuda" else 0):
            flush.zero_()
        for name, run in runs.items():
            if name in out_of_memory:
                continue
            if device == "cpu":
                events[name] = milliseconds(torch, run, device)
                continue
            for _ in range(FLUSHES):
                flush.zero_()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            try:
                run()
            except torch.OutOfMemoryError:  # beside the others' results there is less than when it was alone
                out_of_memory.add(name)
                continue
            end.record()
            events[name] = begin, end
        if device == "cuda":
            torch.cuda.synchronize()
            events = {name: begin.elapsed_time(end) for name, (begin, end) in events.items()}
        if turn >= 2:  # the first two are the warm-up
            for name, ms in events.items():
                times[name].append(ms)
    return {name: [] if name in out_of_memory else found for name, found in times.items()}


def source_of(stage):
    """The text of a stage of kernels."""
    return source_text(folders()[stage.number] / "attention.cu")


def chosen_stages(flashladder, chosen):
    """Their numbers. Throws Missing where one that was asked for cannot be compared."""
    which = "backward" if chosen.backward else "forward"
    stages = of_kernels(which, DTYPES[chosen.dtype], flashladder.stages())
    if chosen.hopper:
        stages = [one for one in stages if needs_hopper(source_of(one))]
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
    all_, judge = contenders(torch, flashladder, stages, q, k, v, causal)
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
    times = measure(torch, runs, chosen.rounds, chosen.device)
    absent |= {name: "this GPU has too little memory for it" for name, found in times.items() if not found}
    rows = []
    for name in all_:
        if name in absent:
            rows.append(shape | {"name": name, "absent": absent[name]})
            continue
        quartiles = statistics.quantiles(times[name], n=4) if len(times[name]) > 1 else 3 * times[name]
        rows.append(shape | {"name": name, "tflops": flops / quartiles[1] / 1e9, "ms": quartiles[1],
                             "ms_lower_quartile": quartiles[0], "ms_upper_quartile": quartiles[2],
                             "runs": len(times[name])})
    return rows


def main():
    chosen = arguments()
    torch, flashladder = libraries()
    device_of(torch, chosen.device)
    stages = chosen_stages(flashladder, chosen)
    base = "memory-efficient" if chosen.dtype == "fp32" else "fa2"  # FlashAttention-2 does not take fp32
    names = [f"stage {number}" for number in stages] + list(backends())
    context = {**machine(torch, commit_of(chosen.commit)), "dtype": chosen.dtype, "batch*N": TOKENS, "heads*d": WIDTH,
               "rounds": chosen.rounds, "pass": "backward" if chosen.backward else "forward"}
    results = []
    print(f"{context['pass']} pass, TFLOP/s; in brackets over {base}\n| d | mask | N | " + " | ".join(names) + " |\n"
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
    for reason in sorted({f"{one['name']}: {one['absent']}" for one in results if "absent" in one}):
        print("absent:", reason)
    absent = [one["absent"] for one in results if "absent" in one and one["name"].startswith("stage")]
    if any("out of memory" not in why for why in absent):
        sys.exit("compare: a stage failed")


if __name__ == "__main__":
    try:
        main()
    except Missing as failure:
        sys.exit(f"compare: {failure}")
