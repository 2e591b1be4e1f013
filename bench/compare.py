#!/usr/bin/env python3
"""Stages and their peers on one GPU: interleaved in one process, on the same tensors, with the same warm-up and flush.

    pip install . && python3 bench/compare.py --stages 19 --out comparison.json

Peers are the backends of PyTorch's scaled_dot_product_attention: FlashAttention-2, cuDNN, memory-efficient, math. One
that is absent, or does not take a shape, is said to be absent. A stage that is not right is never timed. Shapes are
square, because PyTorch's causal mask is aligned at the top left. A ratio counts only from one run.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOKENS, WIDTH = 16384, 2048  # batch * N and heads * d of the papers' grid
FLUSH_BYTES = 512 << 20      # larger than any L2 cache, and long enough for the next launch to be queued behind it


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stages", nargs="+", type=int, default=[16, 17, 18, 19])
    parser.add_argument("--dtype", choices=["bf16", "fp16"], default="bf16")
    parser.add_argument("--d", nargs="+", type=int, default=[64, 128, 256])
    parser.add_argument("--N", nargs="+", type=int, default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--commit", help="what the stages were built from; asked of git where left out")
    parser.add_argument("--out", type=Path, help="write everything to this JSON file")
    return parser.parse_args()


def peers(torch):
    """Name and SDPBackend of each peer."""
    from torch.nn.attention import SDPBackend
    return {"fa2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
            "memory-efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}


def contenders(torch, flashladder, stages, q, k, v, causal):
    """Name and function of everything that is compared on these tensors."""
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention as attention

    def peer(backend):
        def run():
            with sdpa_kernel(backend):
                return attention(q, k, v, is_causal=causal)
        return run

    all_ = {f"stage {number}": lambda number=number: flashladder.forward(number, q, k, v, causal=causal)[0]
            for number in stages}
    return all_ | {name: peer(backend) for name, backend in peers(torch).items()}


def wrong(torch, out, q, k, v, causal):
    """What is wrong with the last rows of the last head, by the rule of the field's own tests; "" if nothing."""
    rows = min(64, q.shape[2])
    Q, K, V = (x[-1, -1].double() for x in (q[:, :, -rows:], k, v))
    scale = q.shape[3] ** -0.5

    def plain(Q, K, V):
        S = Q @ K.T * scale
        if causal:
            last = torch.arange(K.shape[0] - rows, K.shape[0], device=q.device)[:, None]
            S = S.masked_fill(torch.arange(K.shape[0], device=q.device)[None] > last, float("-inf"))
        return torch.softmax(S, dim=-1) @ V

    right, mine = plain(Q, K, V), out[-1, -1, -rows:].double()
    low = plain(Q.to(q.dtype), K.to(q.dtype), V.to(q.dtype)).double()
    error, allowed = (mine - right).abs().max().item(), 2 * (low - right).abs().max().item() + 1e-5
    return "" if error <= allowed else f"off by {error:.3g}, allowed {allowed:.3g}"  # NaN is not <= anything


def measure(torch, runs, rounds):
    """Milliseconds of each function, one after the other in every round."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    times = {name: [] for name in runs}
    for turn in range(rounds + 2):
        events = {}
        for name, run in runs.items():
            flush.zero_()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            run()
            end.record()
            events[name] = begin, end
        torch.cuda.synchronize()
        if turn >= 2:  # the first two are the warm-up
            for name, (begin, end) in events.items():
                times[name].append(begin.elapsed_time(end))
    return times


def main():
    chosen = arguments()
    try:
        import torch
    except ImportError:
        sys.exit("compare: this Python has no PyTorch, whose backends are the peers: pip install torch")
    try:
        import flashladder
    except ImportError:
        sys.exit("compare: this Python has no flashladder: pip install . at the top of the repository")
    if not torch.cuda.is_available():
        sys.exit("compare: PyTorch finds no GPU")
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[chosen.dtype]
    commit = chosen.commit or subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"],
                                             capture_output=True, text=True).stdout.strip() or "unknown"
    results = []
    names = [f"stage {number}" for number in chosen.stages] + list(peers(torch))
    print("TFLOP/s; in brackets over fa2\n| d | mask | N | " + " | ".join(names) + " |\n" + "|---" * (len(names) + 3) + "|")
    for d in chosen.d:
        for causal in (False, True):
            for N in chosen.N:
                torch.manual_seed(1)
                q, k, v = (torch.randn(TOKENS // N, WIDTH // d, N, d, dtype=dtype, device="cuda") for _ in range(3))
                runs, absent = {}, {}
                for name, run in contenders(torch, flashladder, chosen.stages, q, k, v, causal).items():
                    try:
                        why = wrong(torch, run(), q, k, v, causal)
                    except Exception as error:  # a peer's own error, of whatever kind
                        why = str(error).split("\n")[0]
                    if why:
                        absent[name] = why
                    else:
                        runs[name] = run
                flops = 4 * N * N * WIDTH * (TOKENS // N) / (2 if causal else 1)
                times = measure(torch, runs, chosen.rounds)
                speed = {name: flops / statistics.median(ms) / 1e9 for name, ms in times.items()}
                for name in names:
                    one = {"d": d, "causal": causal, "N": N, "name": name}
                    if name in speed:
                        quartiles = statistics.quantiles(times[name], n=4)
                        one |= {"tflops": speed[name], "ms": quartiles[1], "ms_lower_quartile": quartiles[0],
                                "ms_upper_quartile": quartiles[2], "runs": len(times[name])}
                    else:
                        one["absent"] = absent[name]
                    results.append(one)
                cells = ["absent" if name not in speed else f"{speed[name]:.0f}" +
                         (f" ({speed[name] / speed['fa2']:.2f})" if "fa2" in speed else "") for name in names]
                print(f"| {d} | {'causal' if causal else 'full'} | {N} | " + " | ".join(cells) + " |", flush=True)
                del q, k, v, runs
    for name in names:
        ratios = [one["tflops"] / other["tflops"] for one in results if one["name"] == name and "tflops" in one
                  for other in results if other["name"] == "fa2" and "tflops" in other and
                  (one["d"], one["causal"], one["N"]) == (other["d"], other["causal"], other["N"])]
        if ratios:
            print(f"{name}: {statistics.geometric_mean(ratios):.3f} of fa2 in the geometric mean of {len(ratios)} shapes, "
                  f"{min(ratios):.3f} to {max(ratios):.3f}")
    for reason in sorted({f"{one['name']}: {one['absent']}" for one in results if "absent" in one}):
        print("absent:", reason)
    if chosen.out:
        driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                                capture_output=True, text=True).stdout.strip()
        context = {"gpu": torch.cuda.get_device_name(), "driver": driver, "torch": torch.__version__,
                   "cudnn": torch.backends.cudnn.version(), "commit": commit, "dtype": chosen.dtype,
                   "batch*N": TOKENS, "heads*d": WIDTH, "rounds": chosen.rounds}
        chosen.out.write_text(json.dumps({"context": context, "results": results}, indent=1) + "\n")
    if any("absent" in one and one["name"].startswith("stage") for one in results):
        sys.exit("compare: a stage failed")


if __name__ == "__main__":
    main()
