"""Measures the CPU stages against PyTorch's CPU attention: same data, same threads, one process, in turns.

    cmake --preset release && cmake --build build/release
    build/peers/bin/python bench/compare_cpu.py                # measure, print the table, write the JSON
    python3 bench/compare_cpu.py --from FILE.json --update-readme    # only write the tables of the READMEs
"""

import argparse
import ctypes
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from markers import ROOT, NoMarkers, with_block

RESULTS = ROOT / "bench" / "results" / "cpu"
LIBRARY = Path("build/release/bench/libflashladder_c.so")
MAKE_PEERS = """PyTorch is not installed here; these two commands make an environment that has it:
  python3 -m venv build/peers && build/peers/bin/pip install -r bench/requirements-peers.txt
  build/peers/bin/python bench/compare_cpu.py"""
UNDISTURBED = 0.97  # of the time of its cores: what the process must get for a measurement to be left as it is


class Failure(Exception):
    """One sentence for the user."""


class Stages:
    """The stages, through the C interface of bench/c_api.cpp."""

    def __init__(self, path):
        if not path.exists():
            raise Failure(f"{path} is not there: build it with "
                          "'cmake --preset release && cmake --build build/release'")
        self.library = ctypes.CDLL(str(path.resolve()))
        size, number, pointer = ctypes.c_int64, ctypes.c_int, ctypes.c_void_p
        self.library.flashladder_forward.argtypes = [number, *[size] * 6, number, ctypes.c_float, *[pointer] * 5,
                                                     ctypes.c_char_p, ctypes.c_size_t]
        self.library.flashladder_name.argtypes = [number, ctypes.c_char_p, ctypes.c_size_t]
        self.library.flashladder_compiler.restype = ctypes.c_char_p
        self.library.flashladder_peak.restype = ctypes.c_double
        self.message = ctypes.create_string_buffer(1024)

    def check(self, status):
        if status != 0:
            raise Failure(self.message.value.decode())

    def name(self, stage):
        self.check(self.library.flashladder_name(stage, self.message, len(self.message)))
        return self.message.value.decode()

    def forward(self, stage, q, k, v, o, lse, causal):
        batch, heads, rows, d = q.shape
        self.check(self.library.flashladder_forward(
            stage, batch, heads, k.shape[1], rows, k.shape[2], d, causal, 0.0, q.data_ptr(), k.data_ptr(),
            v.data_ptr(), o.data_ptr(), lse.data_ptr(), self.message, len(self.message)))


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
    add("--stages", type=numbers, default=[2], help="stages to measure, such as 1,2 (default: 2)")
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
    add("--library", type=Path, default=ROOT / LIBRARY, help=f"default: {LIBRARY}")
    add("--commit", help="what to record where the sources are a copy without their history (default: git's HEAD)")
    add("--out", type=Path, help="the JSON (default: bench/results/cpu/<model of the CPU>.json)")
    add("--from", dest="source", type=Path, metavar="FILE.json", help="measure nothing, take these results")
    add("--update-readme", action="store_true", help="write the table into the README.md of each stage measured")
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
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "stages", "common", "bench/c_api.cpp", ":!*.md")
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


def measure(torch, stages, chosen, number, name, d, N, causal):
    """One stage on one shape, in turns with PyTorch: a dictionary for the JSON."""
    torch.manual_seed(N + d)
    q, k, v = (torch.randn(chosen.batch, chosen.heads, N, d) for _ in range(3))
    O, L = torch.full_like(q, float("nan")), torch.full(q.shape[:3], float("nan"))

    def stage():
        stages.forward(number, q, k, v, O, L, causal)

    def peer():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def seconds(run):
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    stage()
    O_peer = peer()
    rows = torch.unique(torch.linspace(0, N - 1, 32).round().long())
    wanted, L_wanted, plain = oracle(torch, q, k, v, causal, rows)
    bound = verify(torch, name, O[:, :, rows], wanted, plain, L[:, :, rows], L_wanted)
    verify(torch, "PyTorch", O_peer[:, :, rows], wanted, plain)
    apart = (O - O_peer).abs().max().item()
    if not apart <= 2 * bound:
        raise Failure(f"{name} and PyTorch differ by {apart:.2g}, more than {2 * bound:.2g}; it is not timed")

    pair = seconds(stage) + seconds(peer)  # warm now; a slow pair is repeated less often
    repetitions = max(3, min(chosen.repetitions, int(chosen.seconds / pair)))
    share = 0
    for attempt in range(chosen.attempts):
        times_now, peer_times_now = [], []
        begin, begin_cpu = time.perf_counter(), time.process_time()
        for repetition in range(repetitions):
            turns = [(times_now, stage), (peer_times_now, peer)]
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
    result = {"stage": number, "name": name, "batch": chosen.batch, "heads": chosen.heads, "N": N, "d": d,
              "causal": causal, "repetitions": repetitions, "attempts": attempt + 1, "cpu_share": share,
              "largest_difference": apart,
              "ratio": quartiles([b / a for a, b in zip(times, peer_times)])}
    for key, values in (("stage", times), ("torch", peer_times)):
        result[f"{key}_ms"] = quartiles([1e3 * t for t in values])
        result[f"{key}_gflops"] = flops / statistics.median(values) * 1e-9
    return result


def measure_all(chosen):
    os.environ["OMP_NUM_THREADS"] = str(chosen.threads)  # read when the OpenMP runtime starts
    try:
        import torch
    except ImportError as error:
        raise Failure(MAKE_PEERS if error.name == "torch" else f"PyTorch does not load: {error}") from error
    torch.set_num_threads(chosen.threads)
    torch.set_grad_enabled(False)
    stages = Stages(chosen.library)
    names = {number: f"{number:02d} {stages.name(number)}" for number in chosen.stages}

    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    gemm = []
    for _ in range(10):
        start = time.perf_counter()
        a @ b
        gemm.append(2 * 2048**3 / (time.perf_counter() - start) * 1e-9)
    report = {
        "cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)), "threads": chosen.threads,
        "compiler": stages.library.flashladder_compiler().decode(), "lanes": stages.library.flashladder_lanes(),
        "torch": torch.__version__, "torch_simd": torch.backends.cpu.get_cpu_capability(),
        "openmp_runtimes": openmp_runtimes(), "commit": chosen.commit or git_commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "peak_gflops": stages.library.flashladder_peak() * chosen.threads, "torch_gemm_gflops": max(gemm),
        "results": [],
    }
    if len(report["openmp_runtimes"]) > 1:
        print(f"Two OpenMP runtimes in one process ({', '.join(report['openmp_runtimes'])}): the waiting threads "
              "of the one may slow the other; set OMP_WAIT_POLICY=passive.", file=sys.stderr)
    masks = {"full": [False], "causal": [True], "both": [False, True]}[chosen.masks]
    shapes = [(number, d, causal, N) for number in chosen.stages for d in chosen.d for causal in masks
              for N in chosen.lengths]
    for index, (number, d, causal, N) in enumerate(shapes, 1):
        result = measure(torch, stages, chosen, number, names[number], d, N, causal)
        report["results"].append(result)
        share = result["cpu_share"]
        note = "" if share >= UNDISTURBED else f" (disturbed: it got {share:.0%} of its cores)"
        print(f"[{index}/{len(shapes)}] {names[number]} d={d} N={N}{' causal' if causal else ''}: "
              f"{result['ratio']['median']:.2f}x PyTorch{note}", file=sys.stderr, flush=True)
    return report


def table(report, stage):
    """The results of one stage in Markdown."""
    results = [r for r in report["results"] if r["stage"] == stage]
    first = results[0]
    commit, plus, changes = report["commit"].partition("+")
    lines = [
        f"{report['cpu']}, {report['threads']} of {report['cores']} cores, {report['compiler']}, PyTorch "
        f"{report['torch']} ({report['torch_simd']}), {report['date'][:10]}, commit {commit[:10]}{plus}{changes}; fp32, "
        f"B={first['batch']}, H={first['heads']}. Multiply-adds alone reach {report['peak_gflops']:.0f} GFLOP/s on "
        f"these cores (the peak), PyTorch's matrix product of 2048 x 2048 reaches "
        f"{report['torch_gemm_gflops']:.0f}. Times are medians; the ratio is the median of "
        f"PyTorch / stage over the pairs of one process, its quartiles in brackets.",
        "",
        "| d | mask | N | stage ms | PyTorch ms | stage GFLOP/s | of peak | PyTorch GFLOP/s | ratio |",
        "|--:|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for r in results:
        low, high = r["ratio"]["quartiles"]
        lines.append(
            f"| {r['d']} | {'causal' if r['causal'] else 'full'} | {r['N']} | {r['stage_ms']['median']:.2f} "
            f"| {r['torch_ms']['median']:.2f} | {r['stage_gflops']:.0f} "
            f"| {100 * r['stage_gflops'] / report['peak_gflops']:.0f} % | {r['torch_gflops']:.0f} "
            f"| **{r['ratio']['median']:.2f}** [{low:.2f}, {high:.2f}]"
            f"{'' if r['cpu_share'] >= UNDISTURBED else ' *'} |")
    if any(r["cpu_share"] < UNDISTURBED for r in results):
        lines += ["", "\\* Other programs took more than "
                  f"{100 * (1 - UNDISTURBED):.0f} % of the cores meanwhile."]
    return "\n".join(lines)


def tables(stage):
    """The tables of one stage from all committed results, in Markdown."""
    reports = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    return "\n\n".join(table(report, stage) for report in reports
                       if any(r["stage"] == stage for r in report.get("results", [])))


def update_readmes(report):
    for stage in sorted({r["stage"] for r in report["results"]}):
        for readme in ROOT.glob(f"stages/{stage:02d}_*/README.md"):
            try:
                readme.write_text(with_block(readme, "compare_cpu", tables(stage))[1])
            except NoMarkers as missing:
                print(f"Left as it is: {missing}", file=sys.stderr)
                continue
            print(f"{readme.relative_to(ROOT)} updated", file=sys.stderr)


def main():
    chosen = options()
    if chosen.source:
        try:
            report = json.loads(chosen.source.read_text())
        except (OSError, ValueError) as error:
            raise Failure(f"{chosen.source} cannot be read: {error}") from error
        if "results" not in report:
            raise Failure(f"{chosen.source} holds no results of this script")
    else:
        report = measure_all(chosen)
        slug = re.sub(r"[^a-z0-9]+", "-", report["cpu"].lower()).strip("-")
        out = chosen.out or RESULTS / f"{slug}.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n")
        print(f"wrote {os.path.relpath(out)}", file=sys.stderr)
    for stage in sorted({r["stage"] for r in report["results"]}):
        print(table(report, stage), end="\n\n")
    if chosen.update_readme:
        update_readmes(report)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"error: {failure}")
