"""Measures the CPU stages against PyTorch's CPU attention: same data, same threads, one process, in turns.

    build/peers/bin/python -m bench.measure.compare_cpu    # writes the JSON

What the cores can do at most says build/release/bench/flashladder_bench, which ./ladder bench builds.
bench.report.cpu_tables makes the tables of the READMEs of these files.
"""

import argparse
import datetime
import importlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.measure.facts import write
from bench.results.on_cpu import FOLDER, UNDISTURBED
from common.course import registry
from common.course.registry import ROOT

BENCH = ROOT / "build/release/bench/flashladder_bench"
MAKE_PEERS = """is not installed here; these commands make an environment that has it:
  python3 -m venv build/peers && build/peers/bin/pip install -r bench/measure/requirements-peers.txt
  build/peers/bin/pip install . && build/peers/bin/python -m bench.measure.compare_cpu"""


class Failure(Exception):
    """One sentence for the user."""


def numbers(text):
    try:
        values = [int(word) for word in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of numbers such as 64,128")
    return values


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--stages", type=numbers, help="stages to measure, by number, with commas between (default: the fastest on a CPU)")
    add("--d", type=numbers, default=[64, 128], help="head dimensions (default: 64,128)")
    add("--lengths", type=numbers, default=[512, 1024, 2048, 4096], help="N (default: 512,1024,2048,4096)")
    add("--masks", choices=["full", "causal", "both"], default="both", help="default: both")
    add("--batch", type=int, default=1, help="default: 1")
    add("--heads", type=int, default=8, help="default: 8")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of both (default: every core)")
    add("--repetitions", type=int, default=20, help="timed repetitions, at least 3 (default: 20)")
    add("--seconds", type=float, default=30,
        help="a slow pair is repeated less often, down to 3 times, to stay below this (default: 30)")
    add("--attempts", type=int, default=5,
        help="a shape is measured up to so many times while other programs take more than "
        f"{100 * (1 - UNDISTURBED):.0f} %% of the cores, and the least disturbed attempt is kept (default: 5)")
    add("--commit", help="what to record where the sources are a copy without their history (default: git's HEAD)")
    add("--out", type=Path, help="the JSON (default: bench/results/cpu/<model of the CPU>.json)")
    chosen = parser.parse_args()
    if min(chosen.batch, chosen.heads, chosen.threads, chosen.attempts, *chosen.d, *chosen.lengths) < 1:
        parser.error("sizes, threads and attempts must be at least 1")
    if chosen.repetitions < 3:
        parser.error("--repetitions must be at least 3")
    return chosen


def cpu_model():
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def git_commit():
    try:
        def git(*words):
            return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "stages", "common", ":!*.md")
        return git("rev-parse", "HEAD").strip() + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def openmp_runtimes():
    """The OpenMP runtimes in this process. With two, the waiting threads of the one disturb the other."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    return sorted({Path(path).name for path in re.findall(r"\S+/lib[gi]?omp[^/\s]*\.so\S*", maps)})


def oracle(torch, q, k, v, causal, rows):
    """O and L of some rows in fp64, and O as the plain computation in fp32 gives it."""
    results = []
    for dtype in (torch.float64, torch.float32):
        S = q[:, :, rows].to(dtype) @ k.to(dtype).transpose(2, 3) / q.shape[3] ** 0.5
        if causal:
            S = S.masked_fill(torch.arange(k.shape[2])[None, :] > rows[:, None], float("-inf"))
        results.append((torch.softmax(S, 3) @ v.to(dtype), torch.logsumexp(S, 3)))
    (O, L), (plain, _) = results
    return O, L, plain


def verify(torch, who, O, wanted, plain, L=None, L_wanted=None):
    """Raises unless `O` is as close to the oracle as twice the plain fp32 computation, and L within 1e-5."""
    shifted = (wanted.float() + 0.3 - 0.3).double()
    bound = 2 * (plain - wanted).abs().max() + 2 * (shifted - wanted).abs().max()
    error = (O - wanted).abs().max()
    if not error <= bound:  # also when it is NaN
        raise Failure(f"{who} is wrong: O is off by {error:.2g}, more than {bound:.2g}; it is not timed")
    if L is not None:
        error = (L - L_wanted).abs().max()
        if not error <= 1e-5 * max(1.0, L_wanted.abs().max().item()):
            raise Failure(f"{who} is wrong: L is off by {error:.2g}; it is not timed")
    return bound


def quartiles(values):
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": middle, "quartiles": [low, high]}


def measure(torch, flashladder, chosen, stage, d, N, causal):
    """One stage on one shape, in turns with PyTorch: a dictionary for the JSON."""
    torch.manual_seed(N + d)
    q, k, v = (torch.randn(chosen.batch, chosen.heads, N, d) for _ in range(3))

    def ours():
        return flashladder.forward(stage, q, k, v, causal=causal)

    def peer():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def seconds(run):
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    O, L = ours()
    O_peer = peer()
    rows = torch.unique(torch.linspace(0, N - 1, 32).round().long())
    wanted, L_wanted, plain = oracle(torch, q, k, v, causal, rows)
    bound = verify(torch, str(stage), O[:, :, rows], wanted, plain, L[:, :, rows], L_wanted)
    verify(torch, "PyTorch", O_peer[:, :, rows], wanted, plain)
    apart = (O - O_peer).abs().max().item()
    if not apart <= 2 * bound:
        raise Failure(f"{stage} and PyTorch differ by {apart:.2g}, more than {2 * bound:.2g}; it is not timed")

    pair = seconds(ours) + seconds(peer)  # warm now; a slow pair is repeated less often
    repetitions = max(3, min(chosen.repetitions, int(chosen.seconds / pair)))
    share = 0
    for attempt in range(chosen.attempts):
        times_now, peer_times_now = [], []
        begin, begin_cpu = time.perf_counter(), time.process_time()
        for repetition in range(repetitions):
            turns = [(times_now, ours), (peer_times_now, peer)]
            for into, run in turns if repetition % 2 == 0 else reversed(turns):
                into.append(seconds(run))
        share_now = (time.process_time() - begin_cpu) / (time.perf_counter() - begin) / chosen.threads
        if share_now > share:
            share, times, peer_times = share_now, times_now, peer_times_now
        if share >= UNDISTURBED:
            break
        if attempt + 1 < chosen.attempts:
            time.sleep(2)

    flops = 4 * chosen.batch * chosen.heads * N * N * d / (2 if causal else 1)
    result = {"stage": stage.number, "name": str(stage), "batch": chosen.batch, "heads": chosen.heads, "N": N, "d": d,
              "causal": causal, "repetitions": repetitions, "attempts": attempt + 1, "cpu_share": share,
              "largest_difference": apart,
              "ratio": quartiles([b / a for a, b in zip(times, peer_times)])}
    for key, values in (("stage", times), ("torch", peer_times)):
        result[f"{key}_ms"] = quartiles([1e3 * t for t in values])
        result[f"{key}_gflops"] = flops / statistics.median(values) * 1e-9
    return result


def libraries():
    """The modules torch and flashladder."""
    for name, module in (("PyTorch", "torch"), ("The module flashladder", "flashladder")):
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise Failure(f"{name} {MAKE_PEERS}" if error.name == module else f"{name} does not load: {error}") from error
    return sys.modules["torch"], sys.modules["flashladder"]


def chosen_stages(flashladder, chosen):
    """Those that were named, or the fastest. Throws Failure where one does not run on a CPU."""
    listed = {stage.number: stage for stage in flashladder.stages()}
    if not chosen.stages:
        return [registry.on_a_cpu("forward", listed.values())]
    if wrong := [number for number in chosen.stages if number not in listed or listed[number].kernels]:
        raise Failure(f"stage {wrong[0]} is no stage for a CPU: ./ladder list shows those that are")
    return [listed[number] for number in chosen.stages]


def peak_of_a_core():
    """The fastest of some runs of multiply-adds alone, as Google Benchmark says it: label, lanes, GFLOP/s."""
    try:
        text = subprocess.run([BENCH, "--benchmark_filter=^multiply_adds/fp32", "--benchmark_format=json",
                               "--benchmark_repetitions=5"], capture_output=True, text=True, check=True).stdout
        runs = [one for one in json.loads(text)["benchmarks"] if one["run_type"] == "iteration"]
        return max(runs, key=lambda one: one["GFLOP/s"])
    except (OSError, subprocess.CalledProcessError, ValueError, KeyError) as error:
        raise Failure(f"{BENCH.relative_to(ROOT)} does not say what a core can do: ./ladder setup builds it "
                      "anew") from error


def measure_all(chosen):
    os.environ["OMP_NUM_THREADS"] = str(chosen.threads)  # read when the OpenMP runtime starts
    torch, flashladder = libraries()
    torch.set_num_threads(chosen.threads)
    torch.set_grad_enabled(False)
    stages, peak = chosen_stages(flashladder, chosen), peak_of_a_core()

    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    gemm = []
    for _ in range(10):
        start = time.perf_counter()
        a @ b
        gemm.append(2 * 2048**3 / (time.perf_counter() - start) * 1e-9)
    report = {
        "cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)), "threads": chosen.threads,
        "compiler": peak["label"], "lanes": int(peak["lanes"]), "torch": torch.__version__,
        "torch_simd": torch.backends.cpu.get_cpu_capability(),
        "openmp_runtimes": openmp_runtimes(), "commit": chosen.commit or git_commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "peak_gflops": peak["GFLOP/s"] * chosen.threads, "torch_gemm_gflops": max(gemm),
        "results": [],
    }
    if len(report["openmp_runtimes"]) > 1:
        print(f"Two OpenMP runtimes in one process ({', '.join(report['openmp_runtimes'])}): the waiting threads "
              "of the one may slow the other; set OMP_WAIT_POLICY=passive.", file=sys.stderr)
    masks = {"full": [False], "causal": [True], "both": [False, True]}[chosen.masks]
    shapes = [(stage, d, causal, N) for stage in stages for d in chosen.d for causal in masks
              for N in chosen.lengths]
    for index, (stage, d, causal, N) in enumerate(shapes, 1):
        result = measure(torch, flashladder, chosen, stage, d, N, causal)
        report["results"].append(result)
        share = result["cpu_share"]
        note = "" if share >= UNDISTURBED else f" (disturbed: it got {share:.0%} of its cores)"
        print(f"[{index}/{len(shapes)}] {stage} d={d} N={N}{' causal' if causal else ''}: "
              f"{result['ratio']['median']:.2f}x PyTorch{note}", file=sys.stderr, flush=True)
    return report


def main():
    chosen = options()
    report = measure_all(chosen)
    slug = re.sub(r"[^a-z0-9]+", "-", report["cpu"].lower()).strip("-")
    out = chosen.out or FOLDER / f"{slug}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    write(out, report)
    print(f"wrote {os.path.relpath(out)}; python3 -m bench.report.cpu_tables shows it", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except (Failure, registry.Failure) as failure:
        sys.exit(f"compare_cpu: {failure}")
