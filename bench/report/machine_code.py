"""Writes into the READMEs of Hopper's stages what the compiler made of the order of a tile's instructions.

    python3 -m bench.report.machine_code                  # rewrites what stands between the markers
    python3 -m bench.report.machine_code --check          # changes nothing; exits 1 and names each README that is stale

It reads the objects of the build with cuobjdump and nvdisasm, those of the packages in .venv (./ladder docs installs
them) or of the CUDA Toolkit, and finds in each kernel the shortest loop that multiplies and computes exponentials: that
of the tiles without a mask, where it is a loop of its own. Of the backward pass and the variants it reads the stages whose
README has a place for the table. Another version of nvcc may order otherwise: the tables name the version that they are of, and
--check compares with no other. Exit status: 0; 1 where a README is stale; 77 where there is nothing to read or to read
it with.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

from bench.report.markers import NoMarkers, with_block
from common.course import registry
from common.course.registry import FIRST_VARIANT, ROOT, Failure, needs_hopper, source_text

HEAD_DIMS = [64, 128, 256]
NOTHING_TO_READ = 77  # ctest takes it as skipped

# The products of a tile by where they take A from, each a group of its own where there are two in a loop.
FORWARD = {"shared memory": ["Q K^T"], "registers": ["P~ V"]}
BACKWARD = {"shared memory": ["S", "dP"], "registers": ["dV", "dK"], "shared memory, transposed": ["dQ"]}


class Unavailable(Exception):
    """One sentence: what is missing."""


def find_tool(name):
    """The path of a program of the CUDA Toolkit."""
    packaged = Path(sysconfig.get_paths()["purelib"]) / "nvidia/cu13/bin" / name
    if packaged.exists():
        os.chmod(packaged, 0o755)  # pip keeps no bit that says it can run
        return str(packaged)
    found = shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")
    if found is None:
        raise Unavailable(f"{name} is neither in .venv nor in the CUDA Toolkit: ./ladder docs installs it")
    return found


def nvcc_of(build):
    """The version of the nvcc that the build folder uses, as 13.0."""
    try:
        commands = json.loads((build / "compile_commands.json").read_text())
    except OSError:
        raise Unavailable(f"there is no build in {build}: ./ladder setup makes one") from None
    for one in commands:
        words = shlex.split(one["command"])
        nvcc = next((word for word in words if Path(word).name == "nvcc"), None)
        if nvcc:
            said = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
            return re.search(r"release (\d+\.\d+)", said)[1]
    raise Unavailable(f"the build in {build} has no nvcc")


def functions(text):
    """The instructions of each function of what cuobjdump -sass prints: {name: [(address, instruction)]}."""
    name, found = None, {}
    for line in text.splitlines():
        if "Function :" in line:
            name = line.split(":", 1)[1].strip()
            found[name] = []
        elif name and (one := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?);", line)):
            found[name].append((int(one[1], 16), one[2].strip()))
    return found


def hot_loop(instructions):
    """The shortest loop with matrix products and exponentials in it; None where there is none."""
    loops = []
    for address, text in instructions:
        back = re.search(r"\bBRA(?:\.\w+)*\s.*?(0x[0-9a-f]+)", text)
        if back and int(back[1], 16) <= address:
            body = [one for at, one in instructions if int(back[1], 16) <= at <= address]
            if all(any(word in one for one in body) for word in ("HGMMA", "MUFU.EX2")):
                loops.append(body)
    return min(loops, key=len, default=None)


def event(text):
    """What an instruction means for the order, a product by where it takes A from; or None."""
    word = text.split()[0]
    if word.startswith("HGMMA"):
        if re.search(r"HGMMA\S*\s+R\d+,\s*R\d+", text):
            return "registers"
        return "shared memory, transposed" if ".tnspA" in text else "shared memory"
    if word.startswith("MUFU.EX2"):
        return "exponentials"
    if word.startswith("STSM"):
        return "stores of dS"
    if word.startswith("RED"):
        return "additions to dQ"
    if word.startswith("WARPGROUP.DEPBAR"):
        return f"wait<{int(re.search(r'gsb0, 0x([0-9a-f]+)', text)[1], 16)}>"
    if word.startswith("BAR.SYNC"):
        return "barrier"
    if word.startswith("BAR.ARV"):
        return "arrive"
    return None


def backward_products(loop):
    """Names of the products of a loop: a product S behind the additions to dQ is of the next tile; and where the first tile
    takes a way of its own, dK is there twice."""
    events = [event(text) for text in loop]
    last = max(i for i, one in enumerate(events) if one == "shared memory")
    early = "additions to dQ" in events[:last]
    groups = sum(event(text) == "registers" and "gsb0" in text for text in loop)
    return BACKWARD | ({"shared memory": ["dP", "S"]} if early else {}) | ({"registers": ["dV", "dK", "dK"]} if groups == 3 else {})


def order(loop, products=FORWARD):
    """What happens in a loop, in order: [what, how many in a row]. Its products have these names."""
    loop = [re.sub(r"^@!?U?P\d+\s+", "", text) for text in loop]
    if products is BACKWARD:
        products = backward_products(loop)
    groups = Counter(event(text) for text in loop if "gsb0" in text)
    runs, begun = [], Counter()
    for text in loop:
        one = event(text)
        if names := products.get(one):
            name = names[begun[one] % len(names)] if groups[one] == len(names) else " or ".join(names)
            begun[one] += "gsb0" in text  # the last of its group
            one = name
        if one and runs and runs[-1][0] == one:
            runs[-1][1] += 1
        elif one:
            runs.append([one, 1])
    return runs


def told(runs):
    """The order as the tables have it."""
    return ", ".join(what if re.match("wait|barrier|arrive", what) else f"{number} {what}" for what, number in runs)


def disassembly(compiled):
    """What cuobjdump -sass prints of an object."""
    path = f"{Path(find_tool('nvdisasm')).parent}:{os.environ.get('PATH', '')}"
    said = subprocess.run([find_tool("cuobjdump"), "-sass", str(compiled)], capture_output=True, text=True,
                          env={**os.environ, "PATH": path})
    if said.returncode != 0:
        raise Unavailable(f"cuobjdump -sass {compiled.name}: {said.stderr.strip() or said.returncode}")
    return said.stdout


def bodies(text):
    """The instructions of all functions, of which there may be one of a name for each architecture: how many times each
    text is there."""
    found = Counter()
    for part in re.split(r"\n\s*Function :", text)[1:]:
        (body,) = functions(f"Function :{part}").values()
        found["\n".join(instruction for _, instruction in body)] += 1
    return found


def loops_of(found, d):
    """The hot loops of the functions that multiply for bf16 and this d, by the blocks of their clusters, which a template may
    have as a number behind d."""
    loops = {}
    for name, body in found.items():
        kernel = re.search(rf"__nv_bfloat16Li{d}E(?:Li(\d+)E)?", name)
        if kernel and any("HGMMA" in text for _, text in body):
            loops.setdefault(int(kernel[1] or 1), []).append(hot_loop(body))
    return dict(sorted(loops.items()))


def table(stage, build, version):
    """The Markdown of a stage."""
    compiled = build / f"stages/CMakeFiles/flashladder_hopper_stages.dir/{stage.folder.name}.cu.o"
    if not compiled.exists():
        raise Unavailable(f"{compiled} is not there: the build has no code for Hopper")
    rows = []
    products = FORWARD if stage.forward else BACKWARD
    found = functions(disassembly(compiled))
    for d in HEAD_DIMS:
        for blocks, loops in loops_of(found, d).items():
            if len(loops) > 1 or None in loops:
                raise Unavailable(f"{compiled.name} has no kernel of the form that is known for bf16, d = {d}")
            rows.append(f"| {d}{f', clusters of {blocks}' if blocks > 1 else ''} | {len(loops[0])} | "
                        f"{told(order(loops[0], products))} |")
    if not rows:
        raise Unavailable(f"{compiled.name} has none of these kernels")
    return "\n".join([f"What nvcc {version} makes of a tile's loop, in bf16:", "", "| d | instructions | order |",
                      "|--:|--:|---|", *rows])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", metavar="FOLDER",
                        help="the build that is read (default: build/release)")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a README is stale")
    chosen = parser.parse_args()
    stale = []
    try:
        version = nvcc_of(chosen.build)
        for stage in registry.all_stages(chosen.build / "flashladder"):
            if not stage.kernels or not needs_hopper(source_text(stage.source)):
                continue
            readme = stage.readme
            has_to = stage.forward and stage.number < FIRST_VARIANT
            if not has_to and "<!-- machine code:begin -->" not in readme.read_text():
                continue
            until_now = re.search(r"What nvcc (\S+) makes of a tile's loop", readme.read_text())
            if chosen.check and until_now and until_now[1] != version:
                raise Unavailable(f"the tables are of nvcc {until_now[1]}, and this is {version}")
            old, new = with_block(readme, "machine code", table(stage, chosen.build, version))
            if old == new:
                continue
            stale.append(str(readme.relative_to(ROOT)))
            if not chosen.check:
                readme.write_text(new)
    except (Unavailable, Failure) as error:
        print(f"machine_code: nothing was compared: {error}", file=sys.stderr)
        return NOTHING_TO_READ
    except NoMarkers as error:
        sys.exit(f"machine_code: {error}")
    for name in stale:
        print(f"{name}: {'is stale: python3 -m bench.report.machine_code' if chosen.check else 'written'}")
    return 1 if chosen.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
