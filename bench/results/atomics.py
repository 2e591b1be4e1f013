"""What bench.measure.atomics measured, and what follows from it."""


def variants_of(data):
    """The names of what bench.measure.atomics measured: the stage as it is first, the deterministic one last."""
    return list(dict.fromkeys(kernel["variant"] for kernel in data["kernels"]))


def counts(row, kernels, whole, deterministic):
    """Of a shape, with the tiles of the two stages there: how many blocks add to a row of dQ at most, bytes of fp32
    that all add, splits of the deterministic one and the bytes that these take."""
    d, N, causal, BH = row["d"], row["N"], row["causal"], row["batch"] * row["heads"]
    of = {one["variant"]: one["tile"] for one in kernels if (one["d"], one["causal"]) == (d, causal)}
    Br, Bc = of[whole][:2]
    Tr, Tc = -(-N // Br), -(-N // Bc)
    live = sum(-(-min(N, (i + 1) * Br) // Bc) if causal else Tc for i in range(Tr))
    Br_split, Bc_split = of[deterministic][:2]
    rows, Tc_split = -(-N // Br_split) * Br_split, -(-N // Bc_split)
    most = min(-(-256 // BH), -(-Tc_split // 2))
    splits = -(-Tc_split // -(-Tc_split // most))
    return {"blocks": Tc, "added": 4 * BH * live * Br * d, "splits": splits,
            "split_bytes": 4 * splits * BH * rows * d}
