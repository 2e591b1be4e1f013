"""Answers to the exercises of the notebooks: one that is right, and wrong ones with what the check must say of them.

They are kept out of the notebooks, where readers are to find them. notebooks_test.py runs each in the place of the
answer cell, after the whole notebook, and then the check cell: SOLUTIONS[notebook][number of the exercise].
"""

from typing import NamedTuple


class Solution(NamedTuple):
    right: str  # code of the answer cell
    wrong: dict[str, str]  # code of it -> part of the verdict


SOLUTIONS: dict[str, dict[int, Solution]] = {
    "1_softmax": {
        1: Solution("answer_1 = 1.3125", {
            "answer_1 = 2.25": "has to be rescaled",
            "answer_1 = 6": "The factor is at most 1",
            "answer_1 = 5.25": "against the new maximum",
            "answer_1 = 1.3": "too small. Rescale the old sum",
            "answer_1 = float('nan')": "not a number",
        }),
        2: Solution("""
def merge_with_empty(one, other):
    (m1, l1), (m2, l2) = one, other
    m = max(m1, m2)
    if m == -np.inf:
        return m, 0.0
    return m, np.exp(m1 - m) * l1 + np.exp(m2 - m) * l2""", {
            """
def merge_with_empty(one, other):
    (m1, l1), (m2, l2) = one, other
    m = max(m1, m2)
    with np.errstate(invalid="ignore"):
        return m, np.exp(m1 - m) * l1 + np.exp(m2 - m) * l2""": "its value 1 is nan, not a number",
            """
def merge_with_empty(one, other):
    (m1, l1), (m2, l2) = one, other
    return max(m1, m2), l1 + l2""": "too large",
            "def merge_with_empty(one, other): return one[0]": "should be 2 values",
        }),
        3: Solution("""
def combine(O1, L1, O2, L2):
    m = max(L1, L2)
    w1, w2 = np.exp(L1 - m), np.exp(L2 - m)
    return (w1 * O1 + w2 * O2) / (w1 + w2), m + np.log(w1 + w2)""", {
            "def combine(O1, L1, O2, L2): return (O1 + O2) / 2, np.logaddexp(L1, L2)": "do not weigh the same",
            "def combine(O1, L1, O2, L2): return O1 + O2, np.logaddexp(L1, L2)": "add up to 1",
            """
def combine(O1, L1, O2, L2):
    with np.errstate(all="ignore"):
        w1, w2 = np.exp(L1), np.exp(L2)
        return (w1 * O1 + w2 * O2) / (w1 + w2), np.log(w1 + w2)""": "Take the maximum off first",
        }),
        4: Solution("def growths(n): return sum(1 / k for k in range(1, n + 1))", {
            "def growths(n): return np.log(n)": "it is a sum of n terms",
            "def growths(n): return n / 2": "falls with k",
            "def growths(n): return sum(1 / k for k in range(1, n))": "growths(1) is 0, too small",
            "def growths(n): return 1 / (n - n)": "raises ZeroDivisionError",
        }),
    },
    "2_tiles": {
        1: Solution("answer_1 = 120", {
            "answer_1 = 144": "no O to read yet",
            "answer_1 = 60": "A row of O has d elements",
            "answer_1 = 100": "too small",
        }),
        2: Solution("""
def moved_by_fa2(N, d, Br, Bc):
    Tr = N // Br
    return N * d + 2 * Tr * N * d + N * d + N""", {
            "def moved_by_fa2(N, d, Br, Bc): return 2 * N * d + 2 * (N // Br) * N * d": "L is written too",
            "def moved_by_fa2(N, d, Br, Bc): return 2 * N * d + 2 * (N // Bc) * N * d + N": "which of Br and Bc",
            "def moved_by_fa2(N, d, Br, Bc): return 2 * N * d + (N // Br) * N * d + N": "Both K and V",
            "def moved_by_fa2(N, d, Br, Bc): return 4 * N * d + N": "once for each tile of rows",
        }),
        3: Solution("def needs_mask(i, j, Br, Bc): return (j + 1) * Bc > i * Br + 1", {
            "def needs_mask(i, j, Br, Bc): return j * Bc >= i * Br": "which leaks",
            "def needs_mask(i, j, Br, Bc): return True": "seen in full are masked too",
            "def needs_mask(i, j, Br, Bc): return i == j": "top right corner",
            "def needs_mask(i, j, Br, Bc): return 1": "should be True or False",
        }),
        4: Solution("def longest_over_average(Tr): return 2 * Tr / (Tr + 1)", {
            "def longest_over_average(Tr): return 2.0": "Nearly",
            "def longest_over_average(Tr): return Tr": "1, 2, ... Tr tiles",
        }),
    },
    "3_io": {
        1: Solution("elements_read, elements_written = 153088, 63360", {
            "elements_read, elements_written = 150000, 63360": "5 tiles of keys",
            "elements_read, elements_written = 128256, 3 * (320 * 64 + 2 * 320)": "Which of the two lengths",
            "elements_read, elements_written = 192 * 64 + 3 * 2 * 320 * 64, 192 * 64 + 192": "order of the loops",
        }),
        2: Solution("""
def fa1_as_printed(Nq, Nk, d, Br, Bc):
    Tc = -(-Nk // Bc)
    return 2 * Nk * d + Tc * (2 * Nq * d + 2 * Nq), (Tc + 1) * (Nq * d + 2 * Nq)""", {
            "fa1_as_printed = fa1": "leaves the first loads out",
            """
def fa1_as_printed(Nq, Nk, d, Br, Bc):
    read, written = fa1(Nq, Nk, d, Br, Bc)
    return read + Nq * d + 2 * Nq, written""": "a write, too",
            "def fa1_as_printed(Nq, Nk, d, Br, Bc): return sum(fa1(Nq, Nk, d, Br, Bc))": "should be 2 values",
        }),
        3: Solution("smallest_M = 12544", {
            "smallest_M = 12288": "The other terms",
            "smallest_M = 12800": "too large",
            "smallest_M = 64": "too small",
        }),
        4: Solution("K_read, K_elements = 8 * 4 * 256 * 32, 2 * 256 * 32", {
            "K_read, K_elements = 2 * 4 * 256 * 32, 2 * 256 * 32": "know what the blocks of other",
            "K_read, K_elements = 8 * 4 * 256 * 32, 8 * 256 * 32": "value 1 is 65536, too large",
        }),
        5: Solution("factor_of_Br, factor_of_Bc = 257 / 65, 1", {
            "factor_of_Br, factor_of_Bc = 4, 1": "Nearly. Q is read once",
            "factor_of_Br, factor_of_Bc = 1, 257 / 65": "too small",
        }),
    },
    "4_speedups": {
        1: Solution("milliseconds = 4 * 8192**2 * 128 * 32 / (grid[29, 128, 8192, 'full'] * 1e12) * 1e3", {
            "milliseconds = 2 * 8192**2 * 128 * 32 / (grid[29, 128, 8192, 'full'] * 1e12) * 1e3": "is two FLOPs",
            "milliseconds = 4 * 8192**2 * 128 / (grid[29, 128, 8192, 'full'] * 1e12) * 1e3": "one head",
            "milliseconds = 4 * 8192**2 * 128 * 32 / (grid[29, 128, 8192, 'full'] * 1e12)": "in seconds",
            "milliseconds = 3.2": "32 heads in all",
        }),
        2: Solution("""
ratios = [grid[14, d, N, m] / grid[13, d, N, m] for d in (64, 128) for N in lengths for m in ("full", "causal")]
gain = np.prod(ratios) ** (1 / 24)""", {
            """
ratios = [grid[14, d, N, m] / grid[13, d, N, m] for d in (64, 128) for N in lengths for m in ("full", "causal")]
gain = np.mean(ratios)""": "arithmetic mean",
            "gain = geometric_mean(grid[14, 64, N, 'full'] / grid[13, 64, N, 'full'] for N in lengths)": "24th root",
        }),
        3: Solution("share_12, share_13 = 16 / 132, 1", {
            "share_12, share_13 = 16 / 264, 1": "share of the places",
            "share_12, share_13 = 128 / 132, 1": "how many heads",
            "share_12, share_13 = 32 / 132, 1": "One batch entry of 16 heads",
        }),
        4: Solution("rows_of_a_tile = 207", {
            "rows_of_a_tile = 413": "for fp32",
            "rows_of_a_tile = 104": "has 2 bytes, not 1",
            "rows_of_a_tile = 206": "Rounded down",
            "rows_of_a_tile = 128": "at least PEAK / HBM",
        }),
        5: Solution("""
def work(stage):
    return counts[stage]["matmul FLOPs"] + 16 * counts[stage]["other operations"]
factor = work(11) / work(12)""", {
            """
def work(stage):
    return counts[stage]["matmul FLOPs"] + 16 * counts[stage]["other operations"]
factor = work(12) / work(11)""": "The other way round",
            "factor = counts[11]['other operations'] / counts[12]['other operations']": "leaves the matrix products",
            "factor = 1": "too small",
        }),
    },
    "5_reading_a_diff": {
        1: Solution("in_stage_13, in_stage_14 = (6, 17), (5, 5)", {
            "in_stage_13, in_stage_14 = (5, 5), (6, 17)": "exchanged the two stages",
            "in_stage_13, in_stage_14 = (6, 17), (5, 21)": "value 1 is 21, too large. Stage 14: warp = row // 8",
            "in_stage_13, in_stage_14 = 86, 46": "should be 2 values",
        }),
        2: Solution("barriers_13, barriers_14 = 2 * 8 * 16 * 11, 2 * 8 * 16 * 2", {
            "barriers_13, barriers_14 = 8 * 16 * 11, 8 * 16 * 2": "one head",
            "barriers_13, barriers_14 = 8 * 2816, 8 * 512": "not for each warp",
            "barriers_13, barriers_14 = 2 * 8 * 16 * 7, 512": "too small",
        }),
        3: Solution("counts_that_differ = 0", {
            "counts_that_differ = 2": "What is visible_keys(i) without a mask",
        }),
        4: Solution("tiles, masked_tiles, barriers, K_elements = 30, 10, 60, 122880", {
            "tiles, masked_tiles, barriers, K_elements = 50, 50, 100, 204800": "That is stage 14",
            "tiles, masked_tiles, barriers, K_elements = 15, 5, 30, 61440": "one head",
            "tiles, masked_tiles, barriers, K_elements = 128, 20, 256, 262144": "value 0 is 128, too large",
        }),
        5: Solution("exp_14, exp_15 = 16 * 64 * 80, 10 * 64 * 80", {
            "exp_14, exp_15 = 16 * 64 * 64, 10 * 64 * 64": "computes alpha as well",
            "exp_14, exp_15 = 16 * 64 * 68, 10 * 64 * 68": "R is 16",
            "exp_14, exp_15 = 100 * 100, 100 * 101 // 2": "How many tiles",
        }),
    },
    "6_numerics": {
        1: Solution("answer_1 = 128", {
            "answer_1 = 256": "is not stored",
            "answer_1 = 1024": "That is fp16",
            "answer_1 = 127": "too small",
        }),
        2: Solution("""
def passes(output, expected, tolerance):
    return bool(np.all(np.abs(output - expected) <= tolerance))""", {
            """
def passes(output, expected, tolerance):
    return not np.any(np.abs(output - expected) > tolerance)""": "ask for what is fine",
            "def passes(output, expected, tolerance): return True": "is True",
            "def passes(output, expected, tolerance): return False": "is False",
        }),
        3: Solution("""
def make(N):
    K, V = np.zeros((N, 4)), np.zeros((N, 4))
    K[-1, 0], V[-1] = 1, 1
    return np.array([[100.0, 0, 0, 0]]), K, V""", {
            """
def make(N):
    random = np.random.default_rng(0)
    return random.random((1, 4)), random.random((N, 4)), random.random((N, 4))""": "is False",
            """
def make(N):
    K, V = np.zeros((N, 4)), np.zeros((N, 4))
    K[-1, 0], V[-1] = 1, 1
    return np.array([[10.0, 0, 0, 0]]), K, V""": "last_key_matters(100000) is False",
            "def make(N): return np.zeros((4, 1)), np.zeros((N, 4)), np.zeros((N, 4))": "Q is [1, 4]",
        }),
        4: Solution("""
def kahan(x):
    total, excess = np.float32(0), np.float32(0)
    for value in x:
        corrected = value - excess
        larger = total + corrected
        excess = (larger - total) - corrected
        total = larger
    return total""", {
            "def kahan(x): return one_by_one(x)": "is False",
            "def kahan(x): return x.astype(np.float64).sum()": "has to be in fp32",
        }),
    },
    "7_masks": {
        1: Solution("first_key, end_key = 160, 231", {
            "first_key, end_key = 0, 31": "what is row 10's own key",
            "first_key, end_key = 160, 230": "one more than the last key",
            "first_key, end_key = 160, 211": "keys behind its own, too",
            "first_key, end_key = 161, 231": "too large. Its own key is i + Nk - Nq",
        }),
        2: Solution("def most_tiles(w, Br, Bc): return (Br + w - 3) // Bc + 2", {
            "def most_tiles(w, Br, Bc): return ceil((Br + w - 1) / Bc) + 1": "for some sizes none visits as many",
            "def most_tiles(w, Br, Bc): return ceil((Br + w - 1) / Bc)": "let it be the last key of one",
            "def most_tiles(w, Br, Bc): return ceil(w / Bc) + 1": "Br rows see more keys",
            "def most_tiles(w, Br, Bc): return ceil((Br + w) / Bc) + 1": "Br rows see Br + w - 1 keys",
            "def most_tiles(w, Br, Bc): return 2": "Let the first of them be",
        }),
        3: Solution("""
def rows_that_see(j, left, right, Nq, Nk):
    own = j - (Nk - Nq)
    return max(0, own - right), min(Nq, own + left + 1)""", {
            """
def rows_that_see(j, left, right, Nq, Nk):
    own = j - (Nk - Nq)
    return max(0, own - left), min(Nq, own + right + 1)""": "has the row on its right",
            """
def rows_that_see(j, left, right, Nq, Nk):
    return max(0, j - right), min(Nq, j + left + 1)""": "the own key of which row",
            """
def rows_that_see(j, left, right, Nq, Nk):
    own = j - (Nk - Nq)
    return own - right, own + left + 1""": "only the rows from 0 to Nq - 1",
            """
def rows_that_see(j, left, right, Nq, Nk):
    own = j - (Nk - Nq)
    return max(0, own - right), min(Nq, own + left)""": "solve for i",
        }),
        4: Solution("""
def live_tiles(first_row, Br, Bc, prefix, N):
    last = max(prefix, min(first_row + Br, N))
    return -(-last // Bc)""", {
            "def live_tiles(i, Br, Bc, prefix, N): return ceil(min(i + Br, N) / Bc)": "The prefix is left out",
            "def live_tiles(i, Br, Bc, prefix, N): return ceil(max(i + Br, prefix) / Bc)": "may reach past N",
            "def live_tiles(i, Br, Bc, prefix, N): return max(min(i + Br, N), prefix) // Bc": "visible in part",
            """
def live_tiles(i, Br, Bc, prefix, N):
    return ceil(prefix / Bc) + ceil(min(i + Br, N) / Bc)""": "counted twice",
            "def live_tiles(i, Br, Bc, prefix, N): return ceil(N / Bc)": "whichever is later",
        }),
        5: Solution("""
def map_of_window(N, left):
    first, last = 128 * np.arange(N // 128)[:, None] - left, 128 * np.arange(N // 128) + 127
    return np.tril(last >= first)""", {
            "def map_of_window(N, left): return np.tril(np.ones((N // 128, N // 128)))": "the causal mask alone",
            """
def map_of_window(N, left):
    I, J = np.arange(N // 128)[:, None], np.arange(N // 128)
    return (J <= I) & (J >= I - left // 128)""": "their block is live, too",
            """
def map_of_window(N, left):
    I, J = np.arange(N // 128)[:, None], np.arange(N // 128)
    return J >= (128 * I - left) // 128""": "behind the rows' own",
            "def map_of_window(N, left): return np.eye(N // 128)": "keys from 128 I - left on",
            "def map_of_window(N, left): return 0": "array of shape (8, 8)",
        }),
    },
}
