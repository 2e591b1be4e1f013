"""A small GPT learns the letters of a text, with PyTorch's math attention and with ours, from the same beginning.

    pip install . && python3 -m bench.training.train_gpt --out train_gpt.json    # on a GPU
    python3 -m bench.training.train_gpt --dtype bf16 --out train_gpt_bf16.json
    python3 -m bench.training.train_gpt --tiny --steps 3                         # anywhere, emulated

bench.report.losses draws the curves of such files.

All runs have the same weights at first, the same batches and the same optimiser, so only the rounding of the attention
is different, and the curves of the loss must agree. What rounding may do, a third run says, whose attention is in fp64:
at each step the root mean square of how far ours was from that one so far may be FACTOR times that of math attention,
and FLOOR more, but no larger. So what goes apart late does not hide what was wrong early. Two right attentions may differ
in that by luck, in bf16 more than threefold.

The learning rate rises over the first WARM_UP steps. Without that, one step of the larger model overshoots, to
a larger loss than at first, and enlarges what rounding did so much that right attentions no longer agree.
"""

import argparse
import sys

from bench.measure.facts import commit_of, new_file, write
from bench.measure.on_torch import Missing, backends, device_of, libraries, machine, own, peer
from bench.results.losses import allowed, away, largest, most_of, so_far
from bench.training.ours import fastest
from common.course.registry import ROOT, Failure

TEXT = ROOT / "common/data/text.txt"
SMALL = {"layers": 4, "hidden": 256, "heads": 4, "context": 256, "batch": 16}  # d = 64
TINY = {"layers": 2, "hidden": 64, "heads": 2, "context": 48, "batch": 2}      # d = 32
RATE, WARM_UP = 1e-3, 20  # steps


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--tiny", action="store_true", help="a model that the emulator can train, slowly")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32",
                        help="of attention and matrix products; weights are in fp32 (fp32)")
    parser.add_argument("--stages", nargs=2, type=int, metavar=("FORWARD", "BACKWARD"),
                        help="ours (default: the fastest that take the dtype)")
    parser.add_argument("--device", choices=["cuda", "cpu"], help="default: a GPU where PyTorch finds one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commit", help="what the stages were built from; asked of git where left out")
    parser.add_argument("--out", type=new_file, help="write the curves to this JSON file")
    chosen = parser.parse_args()
    if chosen.steps < 1:
        parser.error("--steps is to be at least 1")
    if not 0 <= chosen.seed < 2**63:
        parser.error("--seed is to be from 0 to 2^63 - 1")
    return chosen


def train(torch, chosen, sizes, text, attention, device):
    """The loss at each step."""
    from bench.training.gpt import GPT
    torch.manual_seed(chosen.seed)  # the weights
    letters, tokens = torch.unique(torch.tensor(list(text)), return_inverse=True)
    context, batch = sizes["context"], sizes["batch"]
    model = GPT(len(letters), context, sizes["layers"], sizes["hidden"], sizes["heads"]).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95))
    warm_up = torch.optim.lr_scheduler.LinearLR(optimiser, 1 / WARM_UP, total_iters=WARM_UP - 1)
    batches = torch.Generator().manual_seed(chosen.seed)
    losses = []
    for _ in range(chosen.steps):
        begins = torch.randint(len(tokens) - context, (batch,), generator=batches).tolist()
        part = torch.stack([tokens[begin:begin + context + 1] for begin in begins]).to(device)
        with torch.autocast(device, torch.bfloat16, enabled=chosen.dtype == "bf16"):
            loss = model.loss(part, attention)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        warm_up.step()
        losses.append(loss.item())
    return losses


def main():
    chosen = arguments()
    torch, flashladder = libraries()
    device = device_of(torch, chosen.device)
    if device == "cpu" and not chosen.tiny:
        raise Missing("without a GPU the emulator runs the kernels, too slowly for this model: give --tiny")
    sizes = TINY if chosen.tiny else SMALL
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[chosen.dtype]
    sample = torch.empty(1, 1, 1, sizes["hidden"] // sizes["heads"], dtype=dtype, device=device)
    try:
        first, second = flashladder.torch.stages_for(
            sample, tuple(chosen.stages) if chosen.stages else fastest(flashladder, chosen.dtype))
    except (Failure, ValueError, RuntimeError) as error:
        raise Missing(str(error)) from None
    plain = peer(backends()["math"])
    attentions = {"math in fp64": lambda q, k, v, causal: plain(q.double(), k.double(), v.double(), causal).to(q.dtype),
                  "math": plain, f"stages {first.number} and {second.number}": own(flashladder, (first, second))}
    curves, apart = {}, {}
    for name, attention in attentions.items():
        curves[name] = train(torch, chosen, sizes, TEXT.read_bytes(), attention, device)
        apart[name] = away(curves[name], curves["math in fp64"])
        print(f"{name}: loss {curves[name][0]:.4f} at first, {curves[name][-1]:.4f} after {chosen.steps} steps, never "
              f"further than {largest(apart[name]):.1e} from that of math in fp64", flush=True)
    share = most_of(so_far(apart[name]), allowed(so_far(apart["math"]), chosen.dtype))
    print(f"ours: at most {share:.2f} of what its step allows")
    data = {"context": {**machine(torch, commit_of(chosen.commit)), "device": device, "dtype": chosen.dtype,
                        "steps": chosen.steps, "seed": chosen.seed, **sizes},
            "furthest_from_fp64": {name: largest(differences) for name, differences in apart.items()}, "losses": curves}
    if chosen.out:
        write(chosen.out, data)
    if not share <= 1:  # NaN is not
        sys.exit("train_gpt: the loss with our attention does not agree with that of math attention")


if __name__ == "__main__":
    try:
        main()
    except Missing as failure:
        sys.exit(f"train_gpt: {failure}")
