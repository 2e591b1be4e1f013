"""How long a call keeps the host: attention on a GPU through this project's interfaces of Python, beside PyTorch's own.

    pip install . && python3 -m bench.measure.host_time --out host.json

Where flashladder.torch has its compiled node, what plain calls take without it is measured too.

The kernels of the problem are short and the GPU is idle before each batch of calls, so that a call never waits for it: the
time is that of the host alone. All run in turns in one process; a number is the median of rounds.
"""

import argparse
import statistics
import time

from bench.measure.facts import commit_of, new_file, write
from bench.measure.on_torch import device_of, libraries, machine

CALLS = 100  # between two waits for the GPU: its queue takes 1024 launches


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="batches of calls of each (20)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to try this script out (cuda)")
    parser.add_argument("--commit", help="what the module was built from; asked of git where left out")
    parser.add_argument("--out", type=new_file, help="write everything to this JSON file")
    return parser.parse_args()


def contenders(torch, flashladder, device):
    """Of each pass and name a call."""
    import flashladder.flash_attn
    from torch.nn.functional import scaled_dot_product_attention

    d, dtype = (64, torch.bfloat16) if device == "cuda" else (8, torch.float32)
    q, k, v, do = (torch.randn(1, 2, 64, d, dtype=dtype, device=device) for _ in range(4))
    learned = [x.clone().requires_grad_() for x in (q, k, v)]
    rows = [x.transpose(1, 2) for x in (q, k, v)]
    stage = None if device == "cuda" else (2, 0)

    def attention(q, k, v):
        return flashladder.torch.attention(q, k, v, causal=True, stage=stage)

    def in_python(q, k, v):
        node, flashladder.torch.node = flashladder.torch.node, None
        o = attention(q, k, v)
        flashladder.torch.node = node
        return o

    def pytorch(q, k, v):
        return scaled_dot_product_attention(q, k, v, is_causal=True)

    found = {}
    without = [("without the node", in_python)] if flashladder.torch.node else []
    for name, function in (("attention", attention), *without, ("PyTorch", pytorch)):
        found["forward", name] = lambda function=function: function(q, k, v)
        found["forward, to train", name] = lambda function=function: function(*learned)
        found["forward and backward", name] = lambda function=function: torch.autograd.grad(function(*learned), learned, do)
    if device == "cuda":
        first, _ = flashladder.torch.stages_for(q, None, False)
        found["forward", "flash_attn_func"] = lambda: flashladder.flash_attn.flash_attn_func(*rows, causal=True)
        found["forward", "flashladder.forward"] = lambda: flashladder.forward(first, q, k, v, causal=True)
        found["forward", "window"] = lambda: flashladder.torch.attention(q, k, v, causal=True, window_size=(16, 0))
    return found


def microseconds(torch, call, device):
    """Of one of many calls."""
    if device == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    return 1e6 * (time.perf_counter() - begin) / CALLS


def main():
    chosen = arguments()
    torch, flashladder = libraries()
    device_of(torch, chosen.device)
    from torch.nn.attention import SDPBackend, sdpa_kernel
    runs = contenders(torch, flashladder, chosen.device)
    times = {key: [] for key in runs}
    # Chosen once: to choose it in each call would take longer than the call.
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION if chosen.device == "cuda" else SDPBackend.MATH):
        for rounds in range(chosen.rounds + 2):
            for key, call in runs.items():
                taken = microseconds(torch, call, chosen.device)
                if rounds >= 2:  # the first ones make everything ready
                    times[key].append(taken)
    results = [{"pass": which, "name": name, "us": round(statistics.median(found), 2), "least_us": round(min(found), 2)}
               for (which, name), found in times.items()]
    for row in sorted(results, key=lambda row: row["pass"]):
        print(f"{row['pass']:22} {row['name']:22} {row['us']:8.2f} us")
    if chosen.out:
        context = {**machine(torch, commit_of(chosen.commit)), "calls": CALLS, "rounds": chosen.rounds}
        write(chosen.out, {"context": context, "results": results})


if __name__ == "__main__":
    main()
