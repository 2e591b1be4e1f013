"""What a variant of attention costs on one GPU, beside plain attention and beside its peers: interleaved in one process, on
the same tensors, rested, as bench.measure.compare.

    pip install . && python3 -m bench.measure.policies --variant window:1024 --out window.json

Peers are FlashAttention-2's kernels in PyTorch, where they have the variant, and PyTorch's FlexAttention, which compiles a
kernel for each at its first call. Beside them the stage with the policy of plain attention is timed under the causal mask:
what the variant saves, or costs. FLOPs are those of the pairs of a query and a key that see each other. What is not right is
never timed.
"""

import argparse
import statistics
import sys
from dataclasses import asdict

from bench.measure.compare import DTYPES, measure, speed_of
from bench.measure.facts import commit_of, new_file, write
from bench.measure.on_torch import (PLAIN, Missing, Variant, device_of, libraries, machine, wrong_gradients,
                                    wrong_output)
from bench.results.gpu import TOKENS, WIDTH

PLAIN_STAGES = {"forward": 70, "backward": 71}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--variant", required=True, help="window:KEYS, window:LEFT:RIGHT or softcap:LIMIT, several with commas")
    parser.add_argument("--stage", type=int, default=72, help="the stage that has it (72)")
    parser.add_argument("--full", action="store_true", help="without the causal mask")
    parser.add_argument("--dtype", choices=["bf16", "fp16"], default="bf16", help="(bf16)")
    parser.add_argument("--d", nargs="+", type=int, default=[64, 128])
    parser.add_argument("--N", nargs="+", type=int, default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--peers", nargs="*", choices=["fa2", "flex"], default=["fa2", "flex"], help="only these (all)")
    parser.add_argument("--rounds", type=int, default=10, help="runs of each (10)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to try this script out (cuda)")
    parser.add_argument("--commit", help="what the stages were built from; asked of git where left out")
    parser.add_argument("--out", type=new_file, help="write everything to this JSON file")
    return parser.parse_args()


def fa2(torch, variant):
    """FlashAttention-2's own kernels in PyTorch, forward and backward, of [batch, heads, N, d]; without a softcap."""
    left, right = variant.window_size

    def forward(q, k, v, causal):
        rows = [x.transpose(1, 2) for x in (q, k, v)]
        window = {"window_size_left": left if left >= 0 else None, "window_size_right": 0 if causal else right if right >= 0 else None}
        window = {} if window["window_size_left"] is None and causal else window
        o, lse, seed, offset, _ = torch.ops.aten._flash_attention_forward(
            *rows, None, None, q.shape[2], k.shape[2], 0.0, causal and not window, False, **window)
        return o.transpose(1, 2), (rows, o, lse, seed, offset, causal and not window, window)

    def backward(do, saved):
        rows, o, lse, seed, offset, causal, window = saved
        N = rows[0].shape[1]
        found = torch.ops.aten._flash_attention_backward(do.transpose(1, 2), *rows, o, lse, None, None, N, N, 0.0, causal, seed,
                                                         offset, **window)
        return [x.transpose(1, 2) for x in found[:3]]
    return forward, backward


def flex(torch, variant, causal, N, device):
    """PyTorch's FlexAttention with the variant, compiled."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def seen(b, h, row, key):
        return ~variant.hidden(causal, row, key)

    def score(s, b, h, row, key):
        return variant.softcap * torch.tanh(s / variant.softcap)

    hides = variant.hidden(causal, torch.zeros(1), torch.zeros(1)) is not None
    mask = create_block_mask(seen, None, None, N, N, device=device) if hides else None
    torch._dynamo.reset()  # which compiles a function for 8 shapes, and then runs it uncompiled
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v: compiled(q, k, v, score_mod=score if variant.softcap else None, block_mask=mask)


def contenders(torch, flashladder, chosen, variant, causal, q, k, v, do, which):
    """Of each name a function, and what says what is wrong with its result."""
    stages = {f"stage {chosen.stage}": (chosen.stage, variant, causal), "plain, causal": (PLAIN_STAGES[which], PLAIN, True)}
    found = {}
    for name, (number, kind, masked) in stages.items():
        if which == "forward":
            run = lambda number=number, kind=kind, masked=masked: flashladder.forward(  # noqa: E731
                number, q, k, v, causal=masked, **asdict(kind))[0]
        else:
            o, lse = flashladder.forward(PLAIN_STAGES["forward"] if kind == PLAIN else number, q, k, v, causal=masked, **asdict(kind))
            run = lambda number=number, kind=kind, masked=masked, o=o, lse=lse: flashladder.backward(  # noqa: E731
                number, q, k, v, o, lse, do, causal=masked, **asdict(kind))
        found[name] = run, kind, masked
    if "fa2" in chosen.peers and not variant.softcap:  # which PyTorch's FlashAttention-2 has not
        forward, backward = fa2(torch, variant)
        if which == "forward":
            found["fa2"] = lambda: forward(q, k, v, causal)[0], variant, causal
        else:
            saved = forward(q, k, v, causal)[1]
            found["fa2"] = lambda: backward(do, saved), variant, causal
    if "flex" not in chosen.peers:
        return found
    attention = flex(torch, variant, causal, q.shape[2], chosen.device)
    if which == "forward":
        found["flex"] = lambda: attention(q, k, v), variant, causal
    else:
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        made = []

        def gradients():
            if not made:
                made.append(attention(*inputs))
            return torch.autograd.grad(made[0], inputs, do, retain_graph=True)
        found["flex"] = gradients, variant, causal
    return found


def rows_of(torch, flashladder, chosen, variant, causal, which, d, N):
    torch.manual_seed(1)
    dtype = getattr(torch, DTYPES[chosen.dtype])
    q, k, v, do = (torch.randn(TOKENS // N, WIDTH // d, N, d, dtype=dtype, device=chosen.device) for _ in range(4))
    shape = {"pass": which, "d": d, "causal": causal, "N": N}
    runs, absent, flops = {}, {}, {}
    for name, (run, kind, masked) in contenders(torch, flashladder, chosen, variant, causal, q, k, v, do, which).items():
        try:
            made = run()
            why = wrong_output(torch, made, q, k, v, masked, kind) if which == "forward" else \
                wrong_gradients(torch, made, q, k, v, do, masked, kind)
        except Exception as error:  # a peer's own error, of whatever kind
            why = str(error).split("\n")[0] or type(error).__name__
        if why:
            absent[name] = why
        else:
            runs[name] = run
            flops[name] = 4 * d * q.shape[0] * q.shape[1] * kind.pairs(masked, N) * (1 if which == "forward" else 2.5)
    rows = []
    for name, measured in measure(torch, runs, chosen.rounds, chosen.device, "rested").items():
        rows.append(shape | {"name": name, **speed_of([time for time, _ in measured], flops[name])})
    return rows + [shape | {"name": name, "absent": why} for name, why in absent.items()]


def main():
    chosen = arguments()
    torch, flashladder = libraries()
    device_of(torch, chosen.device)
    variant, causal = Variant.parse(chosen.variant), not chosen.full
    context = {**machine(torch, commit_of(chosen.commit)), "dtype": chosen.dtype, "batch*N": TOKENS, "heads*d": WIDTH,
               "rounds": chosen.rounds, "pace": "rested", "variant": chosen.variant}
    results = []
    for which in ("forward", "backward"):
        for d in chosen.d:
            for N in chosen.N:
                rows = rows_of(torch, flashladder, chosen, variant, causal, which, d, N)
                results += rows
                print(f"{which} d={d} N={N}: " + "; ".join(
                    f"{row['name']} {row['ms']:.3f} ms" if "ms" in row else f"{row['name']} absent: {row['absent']}" for row in rows),
                    flush=True)
                if chosen.out:  # what is known must not be lost
                    write(chosen.out, {"context": context, "results": results})
                if chosen.device == "cuda":
                    torch.cuda.empty_cache()
    for which in ("forward", "backward"):
        of_pass = {(row["d"], row["N"], row["name"]): row["ms"] for row in results if row["pass"] == which and "ms" in row}
        for name in ("fa2", "flex", "plain, causal"):
            ratios = [ms / own for (d, N, other), ms in of_pass.items() if other == name
                      for own in [of_pass.get((d, N, f"stage {chosen.stage}"))] if own]
            if ratios:
                print(f"{which}: stage {chosen.stage} is {statistics.geometric_mean(ratios):.3f} times as fast as {name}, "
                      f"{min(ratios):.3f} to {max(ratios):.3f}")
    if any("absent" in row and row["name"].startswith("stage") for row in results):
        sys.exit("policies: a stage failed")


if __name__ == "__main__":
    try:
        main()
    except Missing as failure:
        sys.exit(f"policies: {failure}")
