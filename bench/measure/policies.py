"""What a variant of attention costs on one GPU, beside plain attention and beside its peers: interleaved in one process, on
the same tensors, rested, as bench.measure.compare.

    pip install . && python3 -m bench.measure.policies --variant window:1024 --out window.json

Peers are FlashAttention-2's kernels in PyTorch, where they have the variant, and PyTorch's FlexAttention, which compiles a
kernel for each at its first call. Beside them the stage with the policy of plain attention is timed under the causal mask:
what the variant saves, or costs; and beside a stage for Hopper alone the one that has the variant on any GPU. FLOPs are
those of the pairs of a query and a key that see each other. What is not right is never timed.

With `documents` the batch entries lie one after the other in one tensor. It is the same attention as that of the batch, which
plain attention is timed with, and "not packed", the same kernel: what finding the sequences costs.
"""

import argparse
import statistics
import sys
from dataclasses import replace

from bench.measure.compare import DTYPES, measure, speed_of
from bench.measure.facts import commit_of, new_file, write
from bench.measure.on_torch import (PLAIN, Missing, Variant, bias_of, device_of, libraries, machine, map_of, milliseconds,
                                    wrong_gradients, wrong_output)
from bench.results.gpu import TOKENS, WIDTH

# Where a score or a mask asks for numbers in memory, the kernels that FlexAttention tries may all be too large for shared memory.
# Then the fastest of these is taken, for each head dimension and pass.
FLEX_OPTIONS = ({"num_stages": 2}, {"num_stages": 1},
                {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_M1": 32, "BLOCK_N1": 64, "BLOCK_M2": 64, "BLOCK_N2": 32})
FLEX_CHOSEN = {}
PLAIN_STAGES = {"forward": 70, "backward": 71}
ON_HOPPER = {82: 51, 83: 61}  # the stages that have variants on Hopper alone, and plain attention there
ON_ANY_GPU = 81


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--variant", required=True, help="window:KEYS, window:LEFT:RIGHT, softcap:LIMIT, prefix:KEYS, "
                        "dropout:SHARE, blocks:SHARE, documents, alibi, bias or sinks, several with commas")
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


def packed(x):
    """[1, heads, batch * N, d] of [batch, heads, N, d]; in memory a row has all heads."""
    return x.transpose(1, 2).flatten(0, 1)[None].transpose(1, 2)


def unpacked(x, N):
    """Its inverse."""
    return x[0].transpose(0, 1).unflatten(0, (-1, N)).transpose(1, 2)


def begins(torch, batch, N, device):
    """Where documents of N rows each begin, and the last ends."""
    return torch.arange(0, batch * N + 1, N, dtype=torch.int32, device=device)


def fa2(torch, variant):
    """FlashAttention-2's own kernels in PyTorch, forward and backward, of [batch, heads, N, d], with windows, dropout and
    documents."""
    left, right = variant.window_size

    def forward(q, k, v, causal):
        rows, cu, shape = [x.transpose(1, 2) for x in (q, k, v)], None, q.shape
        if variant.documents:
            rows, cu = [x.flatten(0, 1) for x in rows], begins(torch, shape[0], shape[2], q.device)
        sides = left, 0 if causal else right
        window = {f"window_size_{name}": keys if keys >= 0 else None for name, keys in zip(("left", "right"), sides)}
        window = {} if left < 0 and causal else window
        o, lse, seed, offset, _ = torch.ops.aten._flash_attention_forward(
            *rows, cu, cu, q.shape[2], k.shape[2], variant.dropout_p, causal and not window, False, **window)
        saved = rows, o, lse, cu, shape[2], seed, offset, causal and not window, window
        return (o.unflatten(0, (-1, shape[2])) if variant.documents else o).transpose(1, 2), saved

    def backward(do, saved):
        rows, o, lse, cu, N, seed, offset, causal, window = saved
        dO = do.transpose(1, 2).flatten(0, 1) if variant.documents else do.transpose(1, 2)
        found = torch.ops.aten._flash_attention_backward(dO, *rows, o, lse, cu, cu, N, N, variant.dropout_p, causal, seed,
                                                         offset, **window)
        return [(x.unflatten(0, (-1, N)) if variant.documents else x).transpose(1, 2) for x in found[:3]]
    return forward, backward


def flex(torch, variant, causal, N, heads, device, trains):
    """PyTorch's FlexAttention with the variant, compiled, and what else gets a gradient; without dropout, which it has not."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    slopes, sinks = variant.slopes_of(torch, heads, device), variant.sinks_of(torch, heads, device)
    bias = bias_of(torch, heads, N, device).detach().requires_grad_(trains) if variant.bias else None
    block_map = map_of(torch, variant.blocks, N, device) if variant.blocks else None

    def seen(b, h, row, key):
        if not variant.documents:
            return ~variant.hidden(causal, row, key, block_map)
        # Within a document it is the same, but for a prefix, which counts from the document's first key.
        hidden = variant.hidden(causal, *((row % N, key % N) if variant.prefix else (row, key)))
        return (row // N == key // N) if hidden is None else (row // N == key // N) & ~hidden

    def score(s, b, h, row, key):
        s = s + bias[h, row, key] if variant.bias else s
        s = variant.softcap * torch.tanh(s / variant.softcap) if variant.softcap else s
        return s - slopes[h] * (row - key).abs() if variant.alibi else s

    def with_sinks(q, k, v):
        o, lse = flex_attention(q, k, v, score_mod=score_mod, block_mask=mask, return_lse=True)
        return (o * torch.sigmoid(lse - sinks[:, None])[..., None]).to(q.dtype)

    hides = variant.hidden(causal, torch.zeros(1), torch.zeros(1)) is not None or variant.blocks
    if variant.documents:
        mask = create_block_mask(seen, None, None, TOKENS, TOKENS, device=device)
    else:
        mask = create_block_mask(seen, None, None, N, N, device=device) if hides else None
    learned = [bias] if variant.bias else []
    torch._dynamo.reset()  # which compiles a function for 8 shapes, and then runs it uncompiled
    score_mod = score if variant.softcap or variant.alibi or variant.bias else None
    if variant.sinks:
        return torch.compile(with_sinks, dynamic=False), learned
    compiled = torch.compile(flex_attention, dynamic=False)

    def plain(q, k, v):
        options = FLEX_CHOSEN.get((variant, causal, q.shape[-1], trains))
        return compiled(q, k, v, score_mod=score_mod, block_mask=mask, kernel_options=options and dict(options))
    if variant.documents:
        return lambda q, k, v: unpacked(plain(packed(q), packed(k), packed(v)), N), learned
    return plain, learned


def stage_of(flashladder, number):
    return next(one for one in flashladder.stages() if one.number == number)


def own_run(torch, flashladder, number, kind, causal, q, k, v, do, which):
    """A pass of a stage as a function."""
    how = {"causal": causal, **kind.arguments(torch, q.shape[1], q.shape[2], q.device.type)}
    batch, _, N, _ = q.shape
    if kind.documents:
        q, k, v, do = (packed(x) for x in (q, k, v, do))
        how["cu_seqlens_q"] = how["cu_seqlens_k"] = begins(torch, batch, N, q.device)
    as_batch = (lambda x: unpacked(x, N)) if kind.documents else lambda x: x
    if which == "forward":
        return lambda: as_batch(flashladder.forward(number, q, k, v, **how)[0])
    first = PLAIN_STAGES["forward"] if kind == PLAIN else number if stage_of(flashladder, number).forward else ON_ANY_GPU
    o, lse = flashladder.forward(first, q, k, v, **how)
    return lambda: [as_batch(x) for x in flashladder.backward(number, q, k, v, o, lse, do, **how)[:3]]


def contenders(torch, flashladder, chosen, variant, causal, q, k, v, do, which):
    """Of each name a function, and what says what is wrong with its result."""
    stages = {f"stage {chosen.stage}": (chosen.stage, variant, causal),
              "plain, causal": (ON_HOPPER.get(chosen.stage, PLAIN_STAGES[which]), PLAIN, True)}
    if chosen.stage in ON_HOPPER:
        stages["any GPU"] = ON_ANY_GPU, variant, causal
    if variant.documents:  # what packing costs: the same kernel for the same work
        stages["not packed"] = chosen.stage, replace(variant, documents=False), causal
    found = {}
    for name, (number, kind, masked) in stages.items():
        found[name] = own_run(torch, flashladder, number, kind, masked, q, k, v, do, which), kind, masked
    # PyTorch's FlashAttention-2 has no more variants than these.
    if "fa2" in chosen.peers and variant == Variant(variant.window_size, dropout_p=variant.dropout_p,
                                                    documents=variant.documents):
        forward, backward = fa2(torch, variant)
        if which == "forward":
            found["fa2"] = lambda: forward(q, k, v, causal)[0], variant, causal
        else:
            saved = forward(q, k, v, causal)[1]
            found["fa2"] = lambda: backward(do, saved), variant, causal
    if "flex" not in chosen.peers or variant.dropout_p:
        return found
    attention, learned = flex(torch, variant, causal, q.shape[2], q.shape[1], chosen.device, which == "backward")
    if which == "forward":
        found["flex"] = lambda: attention(q, k, v), variant, causal
    else:
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        made = {}  # by the options that it was made with

        def gradients():
            options = str(FLEX_CHOSEN.get((variant, causal, q.shape[-1], True)))
            if options not in made:
                made.clear()
                made[options] = attention(*inputs)
            return torch.autograd.grad(made[options], [*inputs, *learned], do, retain_graph=True)
        found["flex"] = gradients, variant, causal
    return found


def choose_flex_options(torch, run, key, device):
    """Puts into FLEX_CHOSEN what `run` is fastest with, where it does not run without."""
    if key in FLEX_CHOSEN:
        return
    FLEX_CHOSEN[key] = None
    try:
        run()
        return
    except RuntimeError as error:
        if "No valid triton configs" not in str(error):
            raise
    best = float("inf")
    for options in FLEX_OPTIONS:
        before, FLEX_CHOSEN[key] = FLEX_CHOSEN[key], options
        torch._dynamo.reset()
        try:
            run()
            ms = min(milliseconds(torch, run, device) for _ in range(3))
        except Exception:  # of whatever kind: these do not fit either
            ms = float("inf")
        if ms < best:
            best = ms
        else:
            FLEX_CHOSEN[key] = before
    torch._dynamo.reset()


def rows_of(torch, flashladder, chosen, variant, causal, which, d, N):
    torch.manual_seed(1)
    dtype = getattr(torch, DTYPES[chosen.dtype])
    q, k, v, do = (torch.randn(TOKENS // N, WIDTH // d, N, d, dtype=dtype, device=chosen.device) for _ in range(4))
    if variant.documents:  # those of a packed tensor lie row by row
        q, k, v, do = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v, do))
    shape = {"pass": which, "d": d, "causal": causal, "N": N}
    runs, absent, flops = {}, {}, {}
    for name, (run, kind, masked) in contenders(torch, flashladder, chosen, variant, causal, q, k, v, do, which).items():
        try:
            if name == "flex":
                choose_flex_options(torch, run, (variant, causal, d, which == "backward"), chosen.device)
            made = run()
            if name == "fa2" and variant.dropout_p:  # which leaves out others: judged without
                judged = contenders(torch, flashladder, chosen, replace(variant, dropout_p=0.0), causal, q, k, v, do, which)
                made, kind = judged["fa2"][0](), replace(variant, dropout_p=0.0)
            why = wrong_output(torch, made, q, k, v, masked, kind) if which == "forward" else \
                wrong_gradients(torch, made, q, k, v, do, masked, kind)
        except Exception as error:  # a peer's own error, of whatever kind
            why = str(error).split("\n")[0] or type(error).__name__
        if why:
            absent[name] = why
        else:
            runs[name] = run
            flops[name] = 4 * d * q.shape[0] * q.shape[1] * kind.pairs(torch, masked, N) * (1 if which == "forward" else 2.5)
    rows = []
    for name, measured in measure(torch, runs, chosen.rounds, chosen.device, "rested").items():
        options = FLEX_CHOSEN.get((variant, causal, d, which == "backward")) if name == "flex" else None
        rows.append(shape | {"name": name, **speed_of([time for time, _ in measured], flops[name])} | (
            {"options": options} if options else {}))
    return rows + [shape | {"name": name, "absent": why} for name, why in absent.items()]


def main():
    chosen = arguments()
    torch, flashladder = libraries()
    device_of(torch, chosen.device)
    variant, causal = Variant.parse(chosen.variant), not chosen.full
    context = {**machine(torch, commit_of(chosen.commit)), "dtype": chosen.dtype, "batch*N": TOKENS, "heads*d": WIDTH,
               "rounds": chosen.rounds, "pace": "rested", "variant": chosen.variant}
    if chosen.stage in ON_HOPPER:
        context["beside"] = {"plain, causal": ON_HOPPER[chosen.stage], "any GPU": ON_ANY_GPU}
    results = []
    stage = stage_of(flashladder, chosen.stage)
    passes = [which for which in ("forward", "backward") if getattr(stage, which)]
    for which in passes:
        for d in chosen.d:
            for N in chosen.N:
                rows = rows_of(torch, flashladder, chosen, variant, causal, which, d, N)
                results += rows
                print(f"{which} d={d} N={N}: " + "; ".join(
                    f"{row['name']} " + (f"{row['ms']:.3f} ms" if "ms" in row else f"absent: {row['absent']}") for row in rows),
                    flush=True)
                if chosen.out:  # what is known must not be lost
                    write(chosen.out, {"context": context, "results": results})
                if chosen.device == "cuda":
                    torch.cuda.empty_cache()
    for which in passes:
        of_pass = {(row["d"], row["N"], row["name"]): row["ms"] for row in results if row["pass"] == which and "ms" in row}
        for name in ("fa2", "flex", "plain, causal", "not packed", "any GPU"):
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
