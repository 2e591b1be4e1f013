"""Tests of ./ladder watch: that the page shows what the ledger counted and what the kernels did, in a browser too.

Usage: python3 -m tests.watch_test PROGRAM SOURCE_DIR [unittest options]
"""

import base64
import functools
import gzip
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from common.course import registry
from common.course.registry import Failure
from tests.browser import said_in, with_chromium

PROGRAM, SOURCE = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
# As ./ladder sets them: the program, and where the modules are, from wherever the caller is.
os.environ |= {"FLASHLADDER_PROGRAM": str(PROGRAM), "PYTHONPATH": str(SOURCE), "PYTHONSAFEPATH": "yes"}
STAGES = {stage.number: stage for stage in registry.all_stages()}
KERNELS = [stage for stage in STAGES.values() if stage.kernels]
MOST_TRACE, MOST_PAGE = 300_000, 1_000_000  # bytes; the trace is compressed
HAS_LABS = "lab  " in subprocess.run([PROGRAM, "--help"], capture_output=True, text=True).stdout
FOLDER = Path(tempfile.mkdtemp(prefix="watch_test."))


def tearDownModule():
    shutil.rmtree(FOLDER)


def watch(*arguments, **more):
    return subprocess.run([sys.executable, "-B", "-m", "common.course.watch", *arguments], capture_output=True, text=True,
                          cwd=more.pop("cwd", FOLDER), env={**os.environ, **more})


@functools.cache
def page_of(*arguments):
    done = watch(*arguments, "--out", "page.html", "--no-open")
    if done.returncode:
        raise AssertionError(done.stderr)
    return (FOLDER / "page.html").read_text()


@functools.cache
def movie_of(*arguments):
    packed = re.search(r'<script id="movie" type="text/plain">(.*?)</script>', page_of(*arguments))[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def rung_of(*arguments):
    return movie_of(*arguments)["rungs"][0]


def totals_of(rung):
    return {counter["label"]: counter["total"] for counter in rung["counters"]}


@functools.cache
def launches_of(number, *options):
    """What the ledger says of a stage: all counts, and those of each kernel."""
    backward = [] if STAGES[number].forward or "--backward" in options else ["--backward"]
    done = subprocess.run([PROGRAM, "ledger", str(number), *options, *backward, "--json"], capture_output=True, text=True)
    return json.loads(done.stdout)["stages"][0]


def ledger_of(number, *options):
    return launches_of(number, *options)["counts"]


def words_of(stage):
    """What ./ladder watch is asked of a stage here: little enough for all of them."""
    return (stage.digits, "--random", "1,2,256,64")


class CountedTest(unittest.TestCase):
    def holds(self, rung, counts):
        """At the last frame the page has what the ledger counted, and what has travelled are these bytes."""
        totals = totals_of(rung)
        for label, names in (("matmul FLOPs, CUDA cores", ["flops_cuda_cores"]), ("exponentials", ["exp"]),
                             ("matmul FLOPs, tensor cores", ["flops_tensor_cores"]), ("tiles", ["tiles"]),
                             ("masked tiles", ["masked_tiles"]), ("barriers", ["barriers"]),
                             ("other operations", ["add", "mul", "div", "max", "log"])):
            self.assertEqual(totals.get(label, 0), sum(counts[name] for name in names), label)
        moved = dict.fromkeys(totals, 0)
        for _, _, _, buffer, way, _, _, _, size in rung["moves"]:
            moved[f"{rung['buffers'][buffer]} {('read', 'written', 'added to')[way]}, bytes"] += size
        for name, count in counts.items():
            if count and (found := re.fullmatch(r"global\.(\w+)\.(read|written|atomic)_bytes", name)):
                label = f"{found[1]} {found[2].replace('atomic', 'added to')}, bytes"
                self.assertEqual((totals[label], moved[label]), (count, count), label)
        for way in ("read", "written"):
            self.assertEqual(totals.get(f"shared memory {way}, bytes", 0),
                             sum(count for name, count in counts.items() if re.fullmatch(rf"shared\..*\.{way}_bytes", name)))
        added = [0] * len(rung["counters"])
        for counter, add in zip(rung["deltas"]["counter"], rung["deltas"]["add"]):
            added[counter] += add
        self.assertEqual(added, [counter["total"] for counter in rung["counters"]])


class MovieTest(CountedTest):
    def test_the_last_frame_is_what_the_ledger_counted(self):
        for stage in KERNELS:
            with self.subTest(stage=stage.label):
                self.holds(rung_of(*words_of(stage)), ledger_of(stage.number, "--random", "1,2,256,64", "--causal"))

    def test_the_last_frame_is_what_the_ledger_counted_where_blocks_come_in_clusters(self):
        for problem in (("1,3,700,200",), ("1,1,140,136", "--key-len", "300")):
            with self.subTest(problem=problem):
                rung = rung_of("65", "--random", *problem)
                self.holds(rung, ledger_of(65, "--random", *problem, "--causal"))
                self.assertEqual(rung["launches"][0]["grid"][0] % 2, 0)

    def test_the_tiles_are_those_of_the_kernel(self):
        for stage in KERNELS:
            with self.subTest(stage=stage.label):
                rung = rung_of(*words_of(stage))
                totals, tiles = totals_of(rung), rung["tiles"]
                # A kernel that computes S once more, for dQ alone, counts its tiles and shows no P: they are not drawn.
                again = [launch["counts"] for launch in launches_of(stage.number, *words_of(stage)[1:], "--causal")["launches"]
                         if launch["kernel"] == "wgmma_dQ"]
                drawn = [totals[name] - sum(counts[key] for counts in again)
                         for name, key in (("tiles", "tiles"), ("masked tiles", "masked_tiles"))]
                self.assertEqual([len(tiles), sum(tile[5] for tile in tiles)], drawn)
                # Each pair of a row and a key that it sees is in one tile, and in no two.
                for head in range(2):
                    seen = set()
                    for _, i0, i1, j0, j1, *_ in (tile for tile in tiles if tile[0] == head):
                        pairs = {(i, j) for i in range(i0, i1, 8) for j in range(j0, j1, 8)}
                        self.assertFalse(seen & pairs)
                        seen |= pairs
                    wanted = {(i, j) for i in range(0, 256, 8) for j in range(0, 256, 8) if j <= i}
                    self.assertLessEqual(wanted, seen)
                for _, _, _, _, _, _, begin, end, block in tiles:
                    self.assertLessEqual(rung["blocks"][block][3], begin)
                    self.assertLess(begin, end)

    def test_the_order_is_the_kernels(self):
        """FA1 goes over rows inside and keys outside, FA2 over keys; where tiles are skipped, none is above the diagonal."""
        def order(number):
            rung = rung_of(f"{number}", "--random", "1,1,256,64")
            return [(i0 // 64, j0 // 64) for head, i0, _, j0, *_ in rung["tiles"]], rung

        tiles, _ = order(11)
        self.assertEqual(tiles, [(i, j) for j in range(4) for i in range(4)])
        for number, live in ((13, lambda i: 4), (15, lambda i: i + 1)):
            tiles, rung = order(number)
            self.assertEqual(len(rung["blocks"]), 4)
            for i in range(4):
                self.assertEqual([j for row, j in tiles if row == i], list(range(live(i))))

    def test_which_warp_computes_what(self):
        split_keys, split_rows = rung_of("13", "--random", "1,1,256,64"), rung_of("14", "--random", "1,1,256,64")
        shape = lambda part: (part[3] - part[2], part[5] - part[4])
        self.assertEqual({shape(part) for part in split_keys["parts"]}, {(32, 16)})
        self.assertEqual({shape(part) for part in split_rows["parts"]}, {(8, 64)})
        self.assertEqual({lane["role"] for lane in split_rows["lanes"]}, {f"rows {8 * w}-{8 * w + 7}" for w in range(8)})

    def test_the_chosen_row_ends_with_its_result(self):
        """m, l and O~ of the last tile give the O and L that any stage computes."""
        naive = rung_of("10", "--random", "1,1,128,32", "--row", "77")["row"]["steps"][-1]
        for number in (11, 12, 13, 14, 15):
            rung = rung_of(str(number), "--random", "1,1,128,32", "--row", "77")
            _, _, _, m, l, O = rung["row"]["steps"][-1]
            scaled = O if rung["row"]["names"][2] == "O" else [x / l for x in O]
            with self.subTest(stage=number):
                self.assertAlmostEqual(m, naive[3], places=3)
                self.assertAlmostEqual(l, naive[4], places=3)
                for mine, wanted in zip(scaled, naive[5], strict=True):
                    self.assertAlmostEqual(mine, wanted, places=3)
                times = [step[0] for step in rung["row"]["steps"]]
                self.assertEqual(times, sorted(times))

    def test_the_row_is_the_same_after_each_tile_whatever_the_stage(self):
        """m~ may lag, so O~ is compared as e^m O~; and l where it is shown."""
        def after(number):
            found = {}
            for _, _, j1, m, l, O in rung_of(str(number), "--random", "1,1,256,64", "--row", "200", "--dtype", "bf16")["row"]["steps"]:
                found[j1] = [math.exp(m) * x for x in O]
            return found

        for one, others in ((15, (12, 13, 14)), (44, (40, 41, 42, 43, 45, 46, 47, 48, 49, 50)), (24, (20, 23, 25, 28, 29))):
            wanted = after(one)
            for number in others:
                got = after(number)
                shared = {j1 for j1 in wanted if j1 in got and j1 <= 192}
                with self.subTest(stage=number):
                    self.assertTrue(shared)
                    for j1 in shared:
                        for x, y in zip(got[j1], wanted[j1], strict=True):
                            self.assertAlmostEqual(x, y, delta=0.05 * max(map(abs, wanted[j1])))

    def test_rows_that_move_are_of_the_heads_that_work_on_them(self):
        # A block of 38 reads K once, and goes over the heads that share it.
        for words, names in ((("15", "--random", "2,4,96,64", "--kv-heads", "2"), "QK"),
                             (("38", "--random", "2,2,200,64", "--kv-heads", "1"), "Q")):
            rung = rung_of(*words)
            heads = {tile[0] for tile in rung["tiles"]}
            self.assertEqual(heads, set(range(rung["heads"])))
            for buffer in map(rung["buffers"].index, names):
                self.assertEqual({move[5] for move in rung["moves"] if move[3] == buffer} - {-1}, heads, words)
            for move in rung["moves"]:
                self.assertLess(move[5], rung["heads"])
                self.assertLessEqual(move[7], max(rung["Nq"], rung["Nk"]))

    def test_where_an_intermediate_lies_follows_from_the_trace(self):
        for number, registers in ((10, ["m", "l", "O~"]), (11, ["S"]), (13, ["S", "O~"]), (15, ["S", "m", "l", "O~"]),
                                  (44, ["S", "P", "m", "l", "O~"])):
            rung = rung_of(*words_of(STAGES[number]))
            with self.subTest(stage=number):
                self.assertEqual(rung["registers"], registers)
        self.assertEqual([name for name, *_ in rung_of(*words_of(STAGES[10]))["shared"]], ["Q", "K", "V", "P"], "of both products")

    def test_lines_are_of_the_source_and_what_is_done_there(self):
        rung = rung_of("15")
        text = [re.sub("<[^>]+>", "", line) for line in rung["source"]["html"]]
        self.assertEqual(len(text), len((SOURCE / rung["source"]["path"]).read_text().splitlines()))
        bars = rung["bars"]
        scores = {last for kind, last in zip(bars["kind"], bars["to"]) if rung["kinds"][kind] == "S = Q K^T"}
        self.assertEqual(len(scores), 1)
        self.assertIn("probe(&quot;S&quot;", text[scores.pop() - 1])
        waits = {last for kind, last in zip(bars["kind"], bars["to"]) if rung["kinds"][kind] == "waits at a barrier"}
        for line in waits:
            self.assertIn("__syncthreads", text[line - 1])

    def test_bars_of_a_lane_do_not_overlap(self):
        for number in (14, 38, 44, 50):
            rung = rung_of(*words_of(STAGES[number]))
            bars = list(zip(rung["bars"]["lane"], rung["bars"]["begin"], rung["bars"]["length"]))
            for lane in range(len(rung["lanes"])):
                mine = [(begin, begin + length) for which, begin, length in bars if which == lane]
                for (_, end), (begin, _) in zip(mine, mine[1:]):
                    self.assertLessEqual(end, begin + 1, (number, lane))  # times are rounded

    def test_it_is_the_same_each_time_and_small(self):
        for stage in KERNELS:
            options = ["--random", "1,2,512,64", "--causal", *([] if stage.forward else ["--backward"]), "--json", "--trace"]
            says = [subprocess.run([PROGRAM, "ledger", stage.digits, *options], capture_output=True, text=True).stdout
                    for _ in range(2 if stage.number in (11, 44) else 1)]
            with self.subTest(stage=stage.label):
                self.assertEqual(len({*says}), 1)
                trace = json.dumps(json.loads(says[0])["stages"][0]["trace"], separators=(",", ":"))
                self.assertLess(len(gzip.compress(trace.encode())), MOST_TRACE)
                self.assertNotIn(str(SOURCE), trace)
        self.assertLess(len(page_of("14", "15")), MOST_PAGE)
        self.assertLess(len(page_of("11")), MOST_PAGE)


def random_64(seed):
    """The numbers of std::mt19937_64."""
    word, low = 2**64 - 1, 2**31 - 1
    state = [seed]
    for k in range(1, 312):
        state.append((6364136223846793005 * (state[-1] ^ state[-1] >> 62) + k) & word)
    while True:
        for k in range(312):
            x = state[k] & ~low & word | state[(k + 1) % 312] & low
            state[k] = state[(k + 156) % 312] ^ x >> 1 ^ (0xB5026F5AA96619E9 if x & 1 else 0)
            x = state[k]
            x ^= x >> 29 & 0x5555555555555555
            x ^= x << 17 & 0x71D67FFFEDA60000
            x ^= x << 37 & 0xFFF7EEE000000000
            yield x ^ x >> 43


def bits(first, end):
    return (1 << end) - (1 << first)


class Asked:
    """A problem and its variant, and which pairs of a row and a key it has: from a look at each."""

    def __init__(self, number, variant, sizes="1,2,256,64", full=False, backward=False, key_len=None):
        self.number, self.full = number, full
        _, self.heads, self.rows, _ = map(int, sizes.split(","))
        self.keys = key_len or self.rows
        self.parts = {name: [float(value) for value in values] for name, *values in
                      (part.split(":") for part in variant.split(","))}
        problem = ["--random", sizes, "--variant", variant, *([] if key_len is None else ["--key-len", str(key_len)])]
        passes = ["--backward"] if backward else []
        self.label = f"{number} {variant}{' full' if full else ''}{' backward' if backward else ''}"
        self.words = (str(number), *problem, *(["--full"] if full else []), *passes)
        self.options = (*problem, *([] if full else ["--causal"]), *passes)
        lengths = [int(length) for length in self.parts.get("documents", [self.rows])]
        each = lengths * (self.rows // lengths[0]) if len(lengths) == 1 else lengths
        self.begins = [sum(each[:k]) for k in range(len(each) + 1)]
        if self.begins[-1] < self.rows:
            self.begins.append(self.rows)
        numbers = random_64(0)
        self.blocks = [-(-self.rows // 128), -(-self.keys // 128)]
        share = self.parts.get("blocks", [1])[0]
        self.live = {}
        for head in range(self.heads):
            for i in range(self.blocks[0]):
                for j in range(self.blocks[1]):
                    last = (i + 1, j + 1) == tuple(self.blocks)
                    self.live[head, i, j] = share >= 1 or next(numbers) < share * 2**64 or last

    def in_masks(self, i, j):
        own, prefix = i + self.keys - self.rows, self.parts.get("prefix", [0])[0]
        left, right = (self.parts.get("window", [-1]) * 2)[:2]
        if "documents" in self.parts and not any(begin <= i < end and begin <= j < end
                                                 for begin, end in zip(self.begins, self.begins[1:])):
            return False
        behind = right if self.full else 0
        return (left < 0 or j >= own - left) and (behind < 0 or j <= own + behind) or j < prefix

    @functools.cached_property
    def rows_in_masks(self):
        """Of each row the keys, as bits."""
        return [sum(1 << j for j in range(self.keys) if self.in_masks(i, j)) for i in range(self.rows)]

    def seen(self, head, i):
        """The keys that a row sees, likewise."""
        live = sum(bits(128 * j, 128 * (j + 1)) for j in range(self.blocks[1]) if self.live[head, i // 128, j])
        return live & self.rows_in_masks[i]


VARIANTS = [Asked(*one) for one in (
    (72, "window:64"), (72, "window:10:100", "1,2,300,64", True), (73, "prefix:100"), (73, "prefix:200", "1,1,300,64"),
    (74, "documents:100"), (74, "documents:30:1:140:129", "1,2,300,64", True), (75, "softcap:30"),
    (79, "blocks:0.5", "1,2,600,64"), (79, "blocks:0.3,window:100", "1,2,512,64"), (80, "window:64,documents:100,sinks"),
    (80, "softcap:30,bias,alibi,sinks,dropout:0.1,blocks:0.5,window:70:20", "1,2,300,64", True))]
VARIANTS += [Asked(79, "blocks:0.4", "1,2,300,64", False, False, 520), Asked(72, "window:50", key_len=400)]
BACKWARD = [Asked(*one, backward=True) for one in (
    (72, "window:64"), (73, "prefix:100"), (74, "documents:50", "1,2,280,64"), (75, "softcap:30"),
    (79, "blocks:0.5", "1,2,520,64"), (80, "window:64,documents:90:10:156,alibi,dropout:0.1"),
    (80, "blocks:0.5,bias,alibi,sinks"))]


class VariantTest(CountedTest):
    def each(self):
        for asked in (*VARIANTS, *BACKWARD):
            with self.subTest(asked=asked.label):
                yield asked, rung_of(*asked.words)

    def test_the_last_frame_is_what_the_ledger_counted(self):
        for asked, rung in self.each():
            counts = ledger_of(asked.number, *asked.options)
            self.holds(rung, counts)
            self.assertEqual((len(rung["tiles"]), sum(tile[5] for tile in rung["tiles"])),
                             (counts["tiles"], counts["masked_tiles"]))

    def test_the_tiles_are_those_that_rows_see(self):
        for asked, rung in self.each():
            sees = {(head, i): asked.seen(head, i) for head in range(asked.heads) for i in range(asked.rows)}
            been = dict.fromkeys(sees, 0)
            for head, i0, i1, j0, j1, masked, *_ in rung["tiles"]:
                rows, keys = [(head, i) for i in range(i0, i1)], bits(j0, j1)
                self.assertTrue(any(sees[row] & keys for row in rows), "no dead tile is computed")
                self.assertTrue(masked or all(sees[row] & keys == keys for row in rows), "a tile without a mask is whole")
                self.assertFalse(any(been[row] & keys for row in rows), "no pair is in two tiles")
                been.update({row: been[row] | keys for row in rows})
            self.assertFalse([row for row in sees if sees[row] & ~been[row]], "each pair that is seen is in a tile")

    def test_the_outlines_are_those_of_the_masks(self):
        def inside(outline, x, y):
            crossed = False
            for (x0, y0), (x1, y1) in zip(outline, [*outline[1:], outline[0]]):
                crossed ^= (y0 > y) != (y1 > y) and x < x0 + (x1 - x0) * (y - y0) / (y1 - y0)
            return crossed

        for asked, rung in self.each():
            for i in range(0, asked.rows, 7):
                for j in range(0, asked.keys, 3):
                    drawn = sum(inside(outline, j + 0.5, i + 0.25) for outline in rung["seen"])
                    self.assertEqual(drawn, asked.rows_in_masks[i] >> j & 1, (i, j))

    def test_blocks_that_are_left_out_are_those_of_the_map(self):
        for asked, rung in self.each():
            wanted = [[head, 128 * i, min(128 * (i + 1), asked.rows), 128 * j, min(128 * (j + 1), asked.keys)]
                      for (head, i, j), live in asked.live.items() if not live and any(
                          row & bits(128 * j, 128 * (j + 1)) for row in asked.rows_in_masks[128 * i:128 * (i + 1)])]
            self.assertEqual(rung["left_out"], wanted)
            self.assertEqual(bool(wanted), "blocks" in asked.parts)

    def test_rows_and_keys_are_in_their_places(self):
        """What travels for a block, it computes with; all rows of O, L, dQ and D, and all keys of dK and dV, are written."""
        for asked, rung in self.each():
            written = {}
            for _, _, processor, buffer, way, head, row0, row1, _ in rung["moves"]:
                name = rung["buffers"][buffer]
                if head < 0:
                    continue
                if "documents" in asked.parts:
                    sequences = zip(asked.begins, asked.begins[1:])
                    self.assertEqual(sum(begin <= row0 < row1 <= end for begin, end in sequences), 1, (name, row0, row1))
                if way:
                    written.setdefault((name, head), set()).update(range(row0, row1))
                elif name in ("K", "V"):
                    mine = {key for tile in rung["tiles"] if tile[0] == head and rung["blocks"][tile[8]][2] == processor
                            for key in range(tile[3], tile[4])}
                    self.assertLessEqual({*range(row0, row1)}, mine, (name, head))
            for (name, head), rows in written.items():
                self.assertEqual(rows, {*range(asked.keys if name in ("dK", "dV") else asked.rows)}, name)
            names = ("dQ", "dK", "dV", "D", "L2") if rung["pass"] == "backward" else ("O", "L")
            self.assertEqual({name for name, _ in written} - {"dQ_sum"}, {*names})

    def test_the_chosen_row_is_one_of_its_sequence(self):
        """The tile of the first sequence reaches over row 60, which is the second one's."""
        rows = [rung_of(number, "--random", "1,1,256,64", "--row", "60", "--variant", variant)["row"]["steps"]
                for number, variant in (("74", "documents:50:206"), ("80", "documents:50:206"))]
        self.assertEqual([step[1:] for step in rows[0]], [step[1:] for step in rows[1]])
        self.assertEqual([step[1:3] for step in rows[0]], [[50, 178]])
        whole, packed = (rung_of("74", "--random", "1,1,256,64", "--variant", variant)["row"]["steps"][-1][3:]
                         for variant in ("documents:256", "documents:20:236"))
        self.assertNotEqual(whole, packed)

    def test_the_problem_is_told(self):
        for number, variant, words in (
                ("72", "window:64", "causal, window of 64 keys before a row's own, fp16"),
                ("73", "prefix:100", "prefix of 100 keys"), ("74", "documents:100", "3 packed sequences"),
                ("79", "blocks:0", "block map with 2 of 8 blocks"),
                ("80", "alibi,sinks,dropout:0.1,softcap:30,bias",
                 "softcap 30, bias [1, 2, 256, 256], ALiBi, sinks, dropout 0.1")):
            self.assertIn(words, rung_of(number, "--random", "1,2,256,64", "--variant", variant)["problem"])
        self.assertIn("window of 9 keys before and 0 behind a row's own", rung_of(
            "72", "--random", "1,1,64,64", "--variant", "window:9:0", "--full")["problem"])

    def test_the_guide_shows_variants_as_such(self):
        from common.course.ledger import watched_with
        from common.course.watch import parser

        for stage in KERNELS:
            with self.subTest(stage=stage.label):
                variant = parser().parse_args(watched_with(stage.readme)).variant
                self.assertEqual(variant is not None, registry.is_variant(stage))


class PageTest(unittest.TestCase):
    READY = "while (!window.player) await new Promise((done) => setTimeout(done, 20)); const p = window.player;"

    def says(self, page, script):
        return said_in(page, f"{self.READY} {script}", FOLDER, milliseconds=60_000)

    @with_chromium
    def test_play_step_scrub(self):
        said = self.says(page_of("15"), """
          const end = p.movie.end, seen = [];
          seen.push(p.time, p.playing);
          p.step(1); p.step(1); seen.push(p.time);
          p.step(-1); seen.push(p.time);
          const slider = document.querySelector("input[type=range]");
          slider.value = Math.round(end / 2); slider.dispatchEvent(new Event("input"));
          seen.push(Math.round(p.time), p.tiles(0).working > 0);
          dispatchEvent(new KeyboardEvent("keydown", {key: "End"}));
          const values = p.values(0), wrong = p.movie.rungs[0].counters.filter((c) => Math.round(values[c.label]) !== c.total);
          seen.push(p.time === end, wrong.length, p.tiles(0).done === p.movie.rungs[0].tiles.length);
          dispatchEvent(new KeyboardEvent("keydown", {key: "Home"}));
          seen.push(p.time);
          p.play();
          seen.push(p.playing);
          dispatchEvent(new KeyboardEvent("keydown", {key: " "}));
          seen.push(p.playing);
          said = JSON.stringify(seen)""")
        rung = rung_of("15")
        begins = sorted({tile[6] for tile in rung["tiles"] if rung["blocks"][tile[8]][2] == rung["watched"]})
        self.assertEqual(json.loads(said), [0, False, begins[1], begins[0], round(rung["end"] / 2), True, True, 0, True, 0, True,
                                            False])

    @with_chromium
    def test_two_side_by_side_on_one_clock(self):
        said = self.says(page_of("14", "15"), """
          p.seek(p.movie.end);
          const columns = [...document.querySelectorAll(".rung")].map((one) => one.getBoundingClientRect());
          said = JSON.stringify([columns.length, columns[0].right <= columns[1].left, p.tiles(0), p.tiles(1),
                                 document.documentElement.scrollWidth <= innerWidth])""")
        both = movie_of("14", "15")["rungs"]
        self.assertEqual(json.loads(said), [2, True, {"working": 0, "done": len(both[0]["tiles"])},
                                            {"working": 0, "done": len(both[1]["tiles"])}, True])
        self.assertGreater(len(both[0]["tiles"]), len(both[1]["tiles"]))
        of_variants = movie_of("72", "80", "--random", "1,2,256,64", "--variant", "window:64")["rungs"]
        self.assertEqual([len(rung["tiles"]) for rung in of_variants],
                         [ledger_of(number, "--random", "1,2,256,64", "--causal", "--variant", "window:64")["tiles"]
                          for number in (72, 80)])

    @with_chromium
    def test_all_kinds_of_stages_are_drawn_without_an_error(self):
        of_variants = [asked.words for asked in (*VARIANTS, *BACKWARD) if asked.number in (72, 74, 79, 80)]
        for words in (*(words_of(STAGES[number]) for number in (10, 11, 29, 39, 44, 50)), *of_variants[::3]):
            with self.subTest(words=words):
                said = self.says(page_of(*words).replace(
                    "<head>", "<head><script>window.wrong = []; addEventListener('error', (e) => wrong.push(e.message));</script>"),
                    "for (const part of [0, .3, .7, 1]) { p.seek(p.movie.end * part); "
                    "await new Promise((done) => setTimeout(done, 200)); } "
                    "said = JSON.stringify([wrong, document.querySelectorAll('canvas').length > 1])")
                self.assertEqual(json.loads(said), [[], True])

    @unittest.skipUnless(HAS_LABS, "this build has no labs")
    @with_chromium
    def test_a_lab_with_a_mistake(self):
        folder = FOLDER / "lab"
        subprocess.run([PROGRAM, "lab", "new", "15", folder], check=True, capture_output=True)
        text = (STAGES[15].folder / "attention.cu").read_text()
        barrier = "    __syncthreads();  // K and V change: all warps have read the last ones\n"
        self.assertIn(barrier, text)
        (folder / "attention.cu").write_text(text.replace(barrier, ""))
        rung = rung_of("lab")
        self.assertIn("race", rung["error"])
        self.assertGreater(rung["source"]["wrong"], 0)
        said = self.says(page_of("lab"), "p.seek(p.movie.end); await new Promise((done) => setTimeout(done, 300)); said = "
                         "document.querySelector('.error').textContent + document.querySelectorAll('.code .wrong').length")
        self.assertIn("race", said)
        self.assertTrue(said.endswith("1"))
        (folder / "attention.cu").write_text(text)
        self.assertEqual(rung_of("./lab")["error"], "")
        self.assertEqual(totals_of(rung_of("./lab")), totals_of(rung_of("15")))


class RefusalTest(unittest.TestCase):
    def test_wrong_commands(self):
        for arguments, *parts in (
            ([], "name one stage"),
            (["02"], "02 tiled_cpu is C++ for the CPU"),
            (["97"], "stage 97 does not exist"),
            (["13", "14", "15"], "not 3"),
            (["15", "15"], "beside itself"),
            (["15", "38"], "38 tuned_backward has no forward pass"),
            (["15", "--backward"], "has no backward pass"),
            (["15", "--out", ""], "--out is empty"),
            (["15", "--out", "no/page.html"], "cannot write no/page.html"),
            (["15", "--random", ""], "--random: is empty"),
            (["15", "--random", "1,1,100000,64"], "more than 8192 tiles"),
            (["15", "--random", "1,1"], "four whole numbers"),
            (["15", "--row", "512"], "--row 512: there are rows 0 to 511"),
            (["15", "--row", "x"], "--row = x is no value that it takes (./ladder watch --help lists the options)"),
            (["15", "--kv-heads", "3"], "not a multiple"),
            (["15", "--variant", "window:64"], "stage 15 fa2_causal_skip takes no window"),
            (["72", "73", "--variant", "window:64"], "stage 73 prefix takes no window"),
            (["72", "--variant", "window"], "give window:KEYS"),
            (["72", "--variant", "nonsense:1"], "the variants are window:KEYS"),
            (["74", "--variant", "documents:10:20"], "their lengths must add up"),
            (["79", "--variant", "blocks:2"], "from 0 to 1"),
            (["79", "--variant", "blocks:0.5,documents:100"], "do not go together"),
            (["--site", "x", "--variant", "bias"], "--site"),
            (["--site", ""], "--site"),
            (["15", "--site", "x"], "--site"),
            (["--site", "x", "--row", "3"], "--site"),
            (["--nonsense"], "--nonsense", "./ladder watch --help"),
        ):
            with self.subTest(arguments=arguments):
                done = watch(*arguments)
                self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (2, "", 1), done.stderr)
                for part in parts:
                    self.assertIn(part, done.stderr)
        self.assertEqual([*FOLDER.glob("watch_*")], [], "nothing is half written")

    @unittest.skipUnless(HAS_LABS, "this build has no labs")
    def test_a_page_does_not_take_the_place_of_a_students_file(self):
        folder = FOLDER / "kept"
        subprocess.run([PROGRAM, "lab", "new", "15", folder], check=True, capture_output=True)
        for name in ("attention.cu", "lab.json"):
            before = (folder / name).read_bytes()
            done = watch("kept", "--out", f"kept/{name}")
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(f"--out kept/{name} would take the place of that file", done.stderr)
            self.assertEqual((folder / name).read_bytes(), before)

    def test_a_page_does_not_take_the_place_of_what_is_printed_to(self):
        (FOLDER / "link").symlink_to("/proc/self/fd/1")  # as /dev/stdout is
        for out in ("link", "printed"):
            with open(FOLDER / "printed", "w") as printed:
                done = subprocess.run([sys.executable, "-B", "-m", "common.course.watch", "15", "--random", "1,1,64,32", "--out",
                                       out], stdout=printed, stderr=subprocess.PIPE, text=True, cwd=FOLDER)
            self.assertEqual((done.returncode, (FOLDER / "printed").read_text()), (2, ""))
            self.assertIn(f"cannot write {out}: stdin, stdout or stderr is there", done.stderr)
        self.assertTrue((FOLDER / "link").is_symlink())

    def test_what_is_missing_is_named(self):
        self.assertIn("/nowhere/flashladder", watch("15", FLASHLADDER_PROGRAM="/nowhere/flashladder").stderr)
        (FOLDER / "empty").mkdir()
        (FOLDER / "empty/lab.json").write_text("{}")
        done = watch("empty")
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1))
        self.assertIn("empty/lab.json is damaged", done.stderr)

    def test_sums_that_are_not_the_ledgers_are_refused(self):
        from common.course.movie import movie

        done = subprocess.run([PROGRAM, "ledger", "15", "--random", "1,1,64,32", "--json", "--trace"], capture_output=True,
                              text=True)
        answer = json.loads(done.stdout)
        movie(STAGES[15], "15", answer, ("attention.cu", []))
        answer["stages"][0]["counts"]["exp"] += 1
        with self.assertRaisesRegex(Failure, "of exp, and the ledger has"):
            movie(STAGES[15], "15", answer, ("attention.cu", []))
        answer["stages"][0]["counts"]["exp"] -= 1
        trace = answer["stages"][0]["trace"]
        exp = trace["counters"].index("exp")
        for step in (step for launch in trace["launches"] for block in launch["blocks"] for step in block["steps"]):
            pairs = [(counter, more) for counter, more in zip(step[9][::2], step[9][1::2]) if counter != exp]
            step[9] = [number for pair in pairs for number in pair]
        with self.assertRaisesRegex(Failure, "have 0 of exp, and the ledger has"):
            movie(STAGES[15], "15", answer, ("attention.cu", []))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
