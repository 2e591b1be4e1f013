"""How fast GPT-style models train with one attention or another, on one GPU: the papers' last table.

    pip install . && python3 -m bench.training.train_throughput --out training.json

A step is a forward and a backward pass in bf16, without an optimiser. TFLOP/s are by the formula of FlashAttention-2's
paper (Dao 2023, section 4.2, which follows Megatron-LM),

    6 * parameters * tokens + 12 * layers * hidden * N * tokens,

in which a causal mask halves nothing; parameters are all of the model's, the embedding once. MFU is their share of what
a large matrix product reaches in the same run. The same model, weights and tokens serve all attentions, which take turns.
An attention whose output or gradients are not right is never timed. One that does not fit into memory has its batch
halved until it does, down to 1. GiB are the most that PyTorch's allocator had in use; from PyTorch 2.10 on it gives
the stages their own memory, too.
"""

import argparse
import gc
import math
import statistics
import sys

from bench.measure.facts import commit_of, new_file, write
from bench.measure.on_torch import (Missing, backends, device_of, gemm_peak, libraries, machine, milliseconds, own,
                                    peer, wrong_gradients, wrong_output)
from bench.training import ours
from common.course.registry import Failure

VOCABULARY = 50304  # GPT-2's 50257 tokens, and more to the next multiple of 64
MODELS = {"1.3B": {"layers": 24, "hidden": 2048, "heads": 16, "vocabulary": VOCABULARY},
          "2.7B": {"layers": 32, "hidden": 2560, "heads": 20, "vocabulary": VOCABULARY},
          "tiny": {"layers": 2, "hidden": 64, "heads": 2, "vocabulary": 64}}
DTYPES = ("bf16", "fp32")
OURS = {"ours": ours.fastest, "ours, deterministic": ours.deterministic}
ATTENTIONS = ["math", "memory-efficient", "fa2", "cudnn", *OURS]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["1.3B", "2.7B"])
    parser.add_argument("--N", nargs="+", type=int, default=[2048, 8192], help="tokens of a sequence (2048 8192)")
    parser.add_argument("--tokens", type=int, default=16384, help="of a step: batch * N (16384)")
    parser.add_argument("--attentions", nargs="+", choices=[*ATTENTIONS, "flash-attn", "flash-attn-4"],
                        help="default: all that there are in the dtype, without the packages flash-attn and flash-attn-4")
    parser.add_argument("--stages", nargs=2, type=int, metavar=("FORWARD", "BACKWARD"),
                        help="ours (default: the fastest that take the dtype)")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each attention (3)")
    parser.add_argument("--steps", type=int, default=2, help="timed steps of a turn, after one for the warm-up (2)")
    parser.add_argument("--device", choices=["cuda", "cpu"], help="default: a GPU where PyTorch finds one")
    parser.add_argument("--commit", help="what the stages were built from; asked of git where left out")
    parser.add_argument("--out", type=new_file, help="write everything to this JSON file")
    chosen = parser.parse_args()
    if not chosen.attentions:  # in fp32 there is one of ours
        chosen.attentions = [name for name in ATTENTIONS if chosen.dtype == "bf16" or name != "ours, deterministic"]
    if min(chosen.rounds, chosen.steps, chosen.tokens) < 1:
        parser.error("--rounds, --steps and --tokens are to be at least 1")
    for N in chosen.N:
        if N < 1 or chosen.tokens % N:
            parser.error(f"--tokens {chosen.tokens} is no multiple of --N {N}")
    return chosen


def step_flops(parameters, sizes, N, tokens):
    """Of a forward and a backward pass, by the formula above."""
    return 6 * parameters * tokens + 12 * sizes["layers"] * sizes["hidden"] * N * tokens


def stages_of(flashladder, name, chosen):
    """Those of ours, as flashladder.torch.attention takes them."""
    if name == "ours" and chosen.stages:
        return tuple(chosen.stages)
    return OURS[name](flashladder, chosen.dtype)


def attentions(torch, flashladder, chosen, dtype, device):
    """Name and function of each; of ours, where one is absent, why; and the numbers of the stages of each that is not."""
    found, absent, numbers = {}, {}, {}
    for name in chosen.attentions:
        if name not in OURS:
            found[name] = peer(backends()[name])
            continue
        try:
            pair = stages_of(flashladder, name, chosen)
            for d in sorted({MODELS[model]["hidden"] // MODELS[model]["heads"] for model in chosen.models}):
                sample = torch.empty(1, 1, 1, d, dtype=dtype, device=device)
                both = flashladder.torch.stages_for(sample, pair)
                print(f"{name}, d = {d}: forward pass of stage {both[0]}, backward pass of stage {both[1]}")
            numbers[name] = [one.number for one in both]
            found[name] = own(flashladder, pair)
        except (Failure, ValueError, RuntimeError) as error:
            if name == "ours" and chosen.stages:
                raise Missing(f"--stages: {error}") from None
            absent[name] = str(error)
    return found, absent, numbers


def wrong(torch, attention, heads, d, dtype, device):
    """What is wrong with an attention, on a problem of three tiles or so that lies in memory as the model's do; "" if
    nothing."""
    from bench.training.gpt import attend, parts
    generator = torch.Generator().manual_seed(1)
    qkv, do = (torch.randn(2, 190, n * heads * d, generator=generator).to(device, dtype) for n in (3, 1))
    o = attend(qkv.requires_grad_(), heads, attention)
    gradient, = torch.autograd.grad(o, qkv, do)
    q, k, v = parts(qkv.detach(), heads)
    o, do = (x.view(2, 190, heads, d).transpose(1, 2) for x in (o, do))  # as the attention gave the one, and got the other
    return (wrong_output(torch, o, q, k, v, True) or
            wrong_gradients(torch, parts(gradient, heads), q, k, v, do, True))


def step(model, tokens, attention):
    """One, and its loss. The gradients of the last are dropped first."""
    model.zero_grad(set_to_none=True)
    loss = model.loss(tokens, attention)
    loss.backward()
    return loss


def turn(torch, model, tokens, attention, steps, device):
    """Milliseconds of some steps, after one for the warm-up. Throws RuntimeError where a loss is no number."""
    losses = [step(model, tokens, attention).item()]
    times = [milliseconds(torch, lambda: losses.append(step(model, tokens, attention).detach()), device)
             for _ in range(steps)]
    if not all(math.isfinite(float(loss)) for loss in losses):
        raise RuntimeError(f"its loss is {[float(loss) for loss in losses]}")
    return times


def clear(torch, model, device):
    """Frees what a turn left: else one attention's memory would be in the way of the next. Returns the most bytes that
    were in use since the last call, those of the stages themselves, too."""
    model.zero_grad(set_to_none=True)
    gc.collect()
    if device == "cpu":
        return None
    torch.cuda.synchronize()
    most = torch.cuda.max_memory_allocated()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return most


def one_model(torch, flashladder, chosen, name, N, runs, dtype, device):
    """The rows of a model and a length, without MFU."""
    from bench.training.gpt import GPT
    sizes, batch = MODELS[name], chosen.tokens // N
    torch.manual_seed(1)
    with torch.device(device):  # made there: on the CPU it would take a minute
        model = GPT(sizes["vocabulary"], N, sizes["layers"], sizes["hidden"], sizes["heads"]).to(dtype)
        tokens = torch.randint(sizes["vocabulary"], (batch, N + 1))
    parameters = sum(weight.numel() for weight in model.parameters())
    times, batches, memory, absent = {run: [] for run in runs}, dict.fromkeys(runs, batch), {}, {}
    clear(torch, model, device)
    for _ in range(chosen.rounds):
        for run, attention in runs.items():
            while run not in absent:
                why = ""
                try:
                    times[run] += turn(torch, model, tokens[:batches[run]], attention, chosen.steps, device)
                except Exception as error:  # of whatever kind: a peer's own
                    why = str(error) or type(error).__name__
                memory[run] = clear(torch, model, device)
                if not why:
                    break
                if "out of memory" not in why:
                    absent[run] = why.split("\n")[0]
                elif batches[run] == 1:
                    absent[run] = "out of memory at batch 1"
                else:  # from the beginning with half of it
                    batches[run] //= 2
                    times[run] = []
    for run in runs:
        row = {"model": name, "parameters": parameters, "N": N, "batch": batches[run], "name": run}
        if run in absent:
            yield row | {"absent": absent[run]}
        else:
            flops = step_flops(parameters, sizes, N, batches[run] * N)
            lower, median, upper = statistics.quantiles(times[run], n=4) if len(times[run]) > 1 else 3 * times[run]
            yield row | {"tflops": flops / median / 1e9, "ms": median, "ms_lower_quartile": lower,
                         "ms_upper_quartile": upper, "steps": len(times[run]), "torch_bytes": memory[run]}


def main():
    chosen = arguments()
    torch, flashladder = libraries()
    device = device_of(torch, chosen.device)
    large = [name for name in chosen.models if name != "tiny"]
    if device == "cpu" and large:
        raise Missing(f"on the CPU a step of the model {large[0]} would take hours: --models tiny tries this script out")
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[chosen.dtype]
    runs, absent, numbers = attentions(torch, flashladder, chosen, dtype, device)
    for name in list(runs):
        try:
            whys = [wrong(torch, runs[name], sizes["heads"], sizes["hidden"] // sizes["heads"], dtype, device)
                    for sizes in map(MODELS.get, chosen.models)]
            why = next(filter(None, whys), "")
        except Exception as error:  # a peer's own error, of whatever kind
            why = str(error).split("\n")[0] or type(error).__name__
        if why:
            absent[name] = why
            del runs[name]
    peak = gemm_peak(torch, dtype, device)
    data = {"context": {**machine(torch, commit_of(chosen.commit)), "device": device, "dtype": chosen.dtype,
                        "tokens": chosen.tokens, "rounds": chosen.rounds, "steps": chosen.steps,
                        "ours": numbers, "gemm_tflops": peak}, "results": []}
    print(f"{chosen.dtype}, {chosen.tokens} tokens a step; a matrix product reaches {peak:.3g} TFLOP/s\n\n"
          "| model | N | attention | batch | TFLOP/s | MFU | ms a step | GiB |\n|---|--:|---|--:|--:|--:|--:|--:|")
    for model in chosen.models:
        for N in chosen.N:
            rows = list(one_model(torch, flashladder, chosen, model, N, runs, dtype, device))
            rows += [{"model": model, "N": N, "name": name, "absent": why} for name, why in absent.items()]
            rows.sort(key=lambda row: chosen.attentions.index(row["name"]))
            for row in rows:
                if "tflops" in row:
                    row["mfu"] = row["tflops"] / peak
                    cells = [str(row["batch"]), f"{row['tflops']:.3g}", f"{100 * row['mfu']:.1f} %", f"{row['ms']:.1f}",
                             f"{row['torch_bytes'] / 2**30:.1f}" if device == "cuda" else ""]
                else:
                    cells = ["", row["absent"], "", "", ""]
                print(f"| {model} | {N} | {row['name']} | " + " | ".join(cells) + " |", flush=True)
            data["results"] += rows
            if chosen.out:  # what is known must not be lost
                write(chosen.out, data)
    failed = {row["absent"] for row in data["results"] if row["name"] in OURS and "absent" in row}
    if any(not why.startswith("out of memory") for why in failed):
        sys.exit("train_throughput: our attention failed")


if __name__ == "__main__":
    try:
        main()
    except Missing as failure:
        sys.exit(f"train_throughput: {failure}")
