"""What the scripts that run through PyTorch share: its backends as functions, what is right, what is the peak, and where
a result comes from."""

import functools
import itertools
import statistics
import time
from dataclasses import dataclass
from importlib import import_module, metadata

from bench.measure.facts import nvidia_smi
from bench.results.gpu import PACKAGES

MISSING = {"torch": "this Python has no PyTorch: pip install torch",
           "flashladder": "this Python has no flashladder: pip install . at the top of the repository"}


class Missing(Exception):
    """One sentence for the user."""


def libraries():
    """The modules torch, and flashladder with its flashladder.torch."""
    try:
        import torch
    except ImportError:
        raise Missing(MISSING["torch"]) from None
    try:
        import flashladder
        import flashladder.torch
    except ImportError:
        raise Missing(MISSING["flashladder"]) from None
    return torch, flashladder


def device_of(torch, given):
    """The device that was given, else a GPU where PyTorch finds one, else the CPU."""
    found = torch.cuda.is_available()
    if given == "cuda" and not found:
        raise Missing("PyTorch finds no GPU: --device cpu does without")
    return given or ("cuda" if found else "cpu")


def of_package(package, module):
    """Attention by a package of FlashAttention's authors, which takes [batch, N, heads, d] and returns O, or a tuple that
    begins with O. Throws Missing where its module cannot be imported: it is not installed, or does not fit what is."""
    def attention(q, k, v, causal):
        try:
            function = import_module(module).flash_attn_func
        except Exception as error:  # of whatever kind: a package that does not fit fails in ways of its own
            why = str(error).split("\n")[0] or type(error).__name__
            raise Missing(f"{module}, of the package {package}, cannot be imported: {why}") from None
        o = function(*(x.transpose(1, 2) for x in (q, k, v)), causal=causal)
        return (o[0] if isinstance(o, tuple) else o).transpose(1, 2)
    return attention


def backends():
    """Name of each peer, and what peer() makes its attention of: of PyTorch's the SDPBackend, of a package the attention.
    FlashAttention-4 is for Hopper and newer GPUs, 16-bit types and d up to 256. It compiles its kernels, in seconds, at
    the first call of each dtype, d and mask."""
    from torch.nn.attention import SDPBackend
    return {"fa2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
            "flash-attn-4": of_package("flash-attn-4", "flash_attn.cute"),
            "memory-efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH,
            "flash-attn": of_package("flash-attn", "flash_attn")}


def peer(backend):
    """Attention by one backend, as a function of (q, k, v, causal). Where it is causal, lengths are to be equal:
    PyTorch aligns the mask at the top left, and a package at the bottom right."""
    if callable(backend):
        return backend
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def attention(q, k, v, causal):
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)
    return attention


def own(flashladder, stages):
    """The same by flashladder; `stages` as flashladder.torch.attention takes them."""
    def attention(q, k, v, causal):
        return flashladder.torch.attention(q, k, v, causal=causal, stage=stages)
    return attention


@dataclass(frozen=True)
class Variant:
    """What is not plain attention, as flashladder.forward takes it."""

    window_size: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    prefix: int = 0
    alibi: bool = False
    sinks: bool = False
    dropout_p: float = 0.0
    documents: bool = False  # the batch entries are packed in one, as documents: the same attention
    bias: bool = False  # of each head, for all batch entries
    blocks: float = 0.0  # the share of blocks that are live, of one map for all; 0: there is none

    @classmethod
    def parse(cls, text):
        """Of `--variant window:256,softcap:30`, as ./ladder climb takes it, but that dropout's seed is 0, and the block map one
        for all heads, with the blocks of the rows' own keys. Throws Missing."""
        found = {}
        for part in text.split(",") if text else []:
            name, *values = part.split(":")
            try:
                if name == "window" and len(values) in (1, 2):
                    found["window_size"] = int(values[0]), int(values[-1])
                elif name == "softcap" and len(values) == 1:
                    found["softcap"] = float(values[0])
                elif name == "prefix" and len(values) == 1:
                    found["prefix"] = int(values[0])
                elif name == "dropout" and len(values) == 1:
                    found["dropout_p"] = float(values[0])
                elif name == "blocks" and len(values) == 1 and 0 < float(values[0]) <= 1:
                    found["blocks"] = float(values[0])
                elif name in ("alibi", "sinks", "documents", "bias") and not values:
                    found[name] = True
                else:
                    raise ValueError
            except ValueError:
                raise Missing(f"--variant {text}: '{part}' is not understood: give window:KEYS, window:LEFT:RIGHT, "
                              "softcap:LIMIT, prefix:KEYS, dropout:SHARE, blocks:SHARE, documents, alibi, bias or sinks, "
                              "several with commas between them") from None
        return cls(**found)

    def slopes_of(self, torch, heads, device):
        """The slopes of ALiBi's paper, [heads]."""
        return torch.exp2(-8 * torch.arange(1, heads + 1, device=device, dtype=torch.float32) / heads)

    def sinks_of(self, torch, heads, device):
        """A sink for each head, [heads]: of normal scores, their sum of exponentials is about 1.6 N."""
        return torch.linspace(2, 8, heads, device=device, dtype=torch.float32)

    def arguments(self, torch, heads, N, device):
        """What flashladder.forward is given beside q, k, v and causal."""
        return {"window_size": self.window_size, "softcap": self.softcap, "prefix": self.prefix,
                "alibi_slopes": self.slopes_of(torch, heads, device) if self.alibi else None,
                "bias": bias_of(torch, heads, N, device)[None] if self.bias else None,
                "sinks": self.sinks_of(torch, heads, device) if self.sinks else None, "dropout_p": self.dropout_p,
                "block_map": map_of(torch, self.blocks, N, device)[None, None] if self.blocks else None}

    def hidden(self, causal, own, key, block_map=None):
        """Whether a row whose own key is `own` does not see `key`; both are tensors. None: it sees all."""
        left, right = self.window_size
        right = 0 if causal else right
        parts = [*([key > own + right] if right >= 0 else []), *([key < own - left] if left >= 0 else [])]
        if self.prefix and parts:
            parts[0] = parts[0] & (key >= self.prefix)
        if block_map is not None:
            parts.append(block_map[own // BLOCK, key // BLOCK] == 0)
        return functools.reduce(lambda one, other: one | other, parts) if parts else None

    def pairs(self, torch, causal, N):
        """Queries and keys that see each other, of N each."""
        left, right = (N if side < 0 else side for side in self.window_size)
        right = 0 if causal else right
        # Of the keys before each, how many are in live blocks; of each row of blocks. Without a map, all of them.
        before = [range(N + 1)] * (N // BLOCK + 1)
        if self.blocks:
            before = [[0, *itertools.accumulate(row[j // BLOCK] for j in range(N))]
                      for row in map_of(torch, self.blocks, N, "cpu").tolist()]
        return sum(before[i // BLOCK][max(min(i + right, N - 1) + 1, min(self.prefix, N))] - before[i // BLOCK][max(i - left, 0)]
                   for i in range(N))


PLAIN = Variant()
BLOCK = 128  # rows and keys of a block of a map


@functools.lru_cache(maxsize=1)
def bias_of(torch, heads, N, device):
    """Normal numbers [heads, N, N] in fp32, always the same. They are kept: at N = 4,096 they take gigabytes."""
    return torch.randn(heads, N, N, generator=torch.Generator(device).manual_seed(5), device=device)


@functools.lru_cache
def map_of(torch, share, N, device):
    """A block map [rows, keys] in int32, always the same: a block is live with chance `share`, and that of the rows' own
    keys always."""
    blocks = (N + BLOCK - 1) // BLOCK
    live = torch.rand(blocks, blocks, generator=torch.Generator().manual_seed(6)) < share
    return (live | torch.eye(blocks, dtype=torch.bool)).int().to(device)


@dataclass(frozen=True)
class Head:
    """Which head it is: of what its batch entry has, and of all batch entries."""

    h: int
    heads: int
    number: int


def philox_bytes(torch, head, rows, keys, seed=0):
    """The byte that dropout compares for each row and key [rows, keys]: common/attention/philox.hpp, in PyTorch."""
    low = 0xFFFFFFFF
    at = [(keys // 32 * 4 + keys % 8 // 2)[None], (rows // 16 * 8 + rows % 8)[:, None], torch.full_like(keys, head & low),
          torch.full_like(keys, head >> 32)]
    first, second = seed & low, seed >> 32
    for _ in range(7):
        high = []
        for factor, word in ((0xD2511F53, at[0]), (0xCD9E8D57, at[2])):  # in halves: 64 bits have a sign here
            middle = (factor & 0xFFFF) * word
            upper = (factor >> 16) * word + (middle >> 16)
            high.append((upper >> 16, ((upper & 0xFFFF) << 16) | (middle & 0xFFFF)))
        (a_high, a_low), (b_high, b_low) = high
        at = [b_high ^ at[1] ^ first, b_low, a_high ^ at[3] ^ second, a_low]
        first, second = (first + 0x9E3779B9) & low, (second + 0xBB67AE85) & low
    words = torch.stack(torch.broadcast_tensors(*at))  # [4, rows, keys]
    word = torch.gather(words, 0, (keys % 32 // 8).expand(1, len(rows), -1))[0]
    return word >> (keys % 2 * 8 + (rows % 16 // 8 * 16)[:, None]) & 255


def definition(torch, Q, K, V, causal, variant=PLAIN, head=Head(0, 1, 0), row0=0):
    """Attention of one head as it is written, in the dtype of Q [rows, d], which are the rows from row0 on, K and V
    [keys, d]; aligned at the bottom right."""
    S = Q @ K.T * Q.shape[1] ** -0.5
    if variant.bias:
        S = S + bias_of(torch, head.heads, len(K), S.device.type)[head.h, row0:row0 + len(Q)].to(S.dtype)
    if variant.softcap:
        S = variant.softcap * torch.tanh(S / variant.softcap)
    rows, keys = (torch.arange(size, device=S.device) for size in S.shape)
    own = (rows + len(keys) - len(rows))[:, None]
    if variant.alibi:
        S = S - variant.slopes_of(torch, head.heads, S.device)[head.h].to(S.dtype) * (own - keys).abs()
    block_map = map_of(torch, variant.blocks, len(K), S.device.type) if variant.blocks else None
    hidden = variant.hidden(causal, own, keys, block_map)
    if hidden is not None:
        S = S.masked_fill(hidden, float("-inf"))
    if variant.sinks:
        sink = variant.sinks_of(torch, head.heads, S.device)[head.h].to(S.dtype)
        P = torch.softmax(torch.cat([S, sink.expand(len(rows), 1)], dim=-1), dim=-1)[:, :-1]
    else:
        P = torch.softmax(S, dim=-1)
    if variant.dropout_p:
        kept = 256 - round(256 * variant.dropout_p)
        P = P * (philox_bytes(torch, head.number, rows + row0, keys) < kept) * (256 / kept)
    return P @ V


def is_off(torch, found, right, low):
    """Why `found` is wrong, "" if it is not, by the rule of the checks (common/check/check.hpp): the largest error and the
    2-norm of all, against those of `low`, the plain computation in the dtype. `right` is in fp64. In fp32 PyTorch's
    products add up in blocks, which errs the less against one number after the other the more there are: there 16 times
    its error is allowed where it is twice in 16 bits."""
    error, plain = found.double() - right, low.double() - right
    stored = 2 * ((right.to(low.dtype) + 0.3 - 0.3).double() - right).abs().max()
    roundoff = torch.finfo(low.dtype).eps / 2
    times = 16 if low.dtype == torch.float32 else 2
    for what, is_, allowed in (("off by", error.abs().max(), times * plain.abs().max() + stored),
                               ("off in its norm by", error.norm(), times * max(plain.norm(), roundoff * right.norm()))):
        if not is_ <= allowed:  # NaN is not <= anything
            return f"{what} {is_:.3g}, allowed {allowed:.3g}"
    return ""


def head_of(q, place):
    """The head at `place`, of [batch, heads] of q."""
    b, h = (index % size for index, size in zip(place, q.shape))
    return Head(h, q.shape[1], b * q.shape[1] + h)


def wrong_output(torch, o, q, k, v, causal, variant=PLAIN):
    """What is wrong with O; "" if nothing. Of the first head and the last one the last rows are compared, and everywhere
    there must be numbers. One query head for each key/value head."""
    for head in ((0, 0), (-1, -1)):
        Q, K, V = q[head][-64:].detach(), k[head].detach(), v[head].detach()
        place = (head_of(q, head), q.shape[2] - len(Q))
        right = definition(torch, Q.double(), K.double(), V.double(), causal, variant, *place)
        if why := is_off(torch, o[head][-64:].detach(), right, definition(torch, Q, K, V, causal, variant, *place)):
            return f"O is {why}"
    return "" if torch.isfinite(o).all() else "O has elements that are no finite numbers"


def wrong_gradients(torch, gradients, q, k, v, do, causal, variant=PLAIN):
    """What is wrong with dQ, dK and dV; "" if nothing. The last head is compared, and everywhere there must be numbers.
    One query head for each key/value head."""
    of_head = [x[-1, -1] for x in (q, k, v, do)]

    def plain(dtype):
        *inputs, dO = (x.detach().to(dtype) for x in of_head)
        for x in inputs:
            x.requires_grad_()
        return torch.autograd.grad(definition(torch, *inputs, causal, variant, head_of(q, (-1, -1))), inputs, dO)

    for name, found, right, low in zip(("dQ", "dK", "dV"), gradients, plain(torch.float64), plain(q.dtype)):
        if why := is_off(torch, found[-1, -1], right, low):
            return f"{name} is {why}"
        if not torch.isfinite(found).all():
            return f"{name} has elements that are no finite numbers"
    return ""


def milliseconds(torch, run, device):
    """How long a call of `run` takes, by the GPU's own clock where it runs on one."""
    if device == "cpu":
        begin = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - begin)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


# Of a multiprocessor's tensor cores by compute capability: FLOPs of 16-bit numbers in a clock, without sparsity (NVIDIA's
# white papers of A100 and H100).
TENSOR_FLOPS_PER_CLOCK = {(8, 0): 2048, (9, 0): 4096}


def most_flops(torch, dtype):
    """FLOPs in a clock of all tensor cores of the GPU; None where that is not known."""
    of_one = TENSOR_FLOPS_PER_CLOCK.get(torch.cuda.get_device_capability()) if dtype.itemsize == 2 else None
    return of_one and of_one * torch.cuda.get_device_properties(0).multi_processor_count


def gemm_peak(torch, dtype, device, runs=20):
    """TFLOP/s of a large product of random matrices: what others are percentages of. Measured as `./ladder bench` does,
    but that the matrices, of 8192 x 8192, do not fit into the L2 cache, so that it is not emptied."""
    n = 8192 if device == "cuda" else 512
    A, B = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    C = torch.empty_like(A)
    times = [milliseconds(torch, lambda: torch.matmul(A, B, out=C), device) for _ in range(runs + 2)]
    return 2 * n**3 / statistics.median(times[2:]) / 1e9


def packages():
    """The versions of those that are installed. None is imported, which may fail in ways of its own."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return found


def machine(torch, commit):
    """What a result was measured on."""
    if not torch.cuda.is_available():
        return {"gpu": None, "torch": torch.__version__, "commit": commit, **packages()}
    driver, = nvidia_smi("driver_version") or ["unknown"]
    return {"gpu": torch.cuda.get_device_name(), "driver": driver, "torch": torch.__version__,
            "cudnn": torch.backends.cudnn.version(), "commit": commit, **packages()}
