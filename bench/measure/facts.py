"""What all that is measured has in common: the file that it goes to, the commit and the GPU that it is of."""

import argparse
import re
import statistics
import subprocess
import threading
import time
from pathlib import Path

from bench.results.rows import rows_text
from bench.variants.variants import VariantError
from common.course.program import write_file
from common.course.registry import ROOT


def new_file(text):
    """The path of a file that is to be written, as an argument's type: what is wrong with it is said before the work."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder: give the name of a file")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}: make it first")
    return path


def nvidia_smi(*fields):
    """What nvidia-smi says of the first GPU, a text for each field; None where it finds none."""
    try:
        line = subprocess.run(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", "--id=0"],
                              capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    words = [word.strip() for word in line.split(",")]
    return None if len(words) != len(fields) or "No devices" in line else words


class Clocks:
    """The clock of the first GPU's multiprocessors while this is entered, as nvidia-smi samples it."""

    EVERY_MS = 20

    def __enter__(self):
        self.samples = []  # time.monotonic(), GHz
        command = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits", "--id=0", f"-lms={self.EVERY_MS}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        return self

    def read(self):
        for line in self.process.stdout:
            if line.strip().isdecimal():
                self.samples.append((time.monotonic(), int(line) / 1e3))

    def ghz(self, begin, end):
        """The mean between two times of time.monotonic(); None where there are no samples."""
        found = [ghz for when, ghz in list(self.samples) if begin <= when <= end]
        return statistics.fmean(found) if found else None

    def __exit__(self, *_):
        self.process.terminate()
        self.reader.join()
        self.process.wait()


def commit_of(given):
    """The commit that was given, or the one that the sources are at; results are no sources."""
    def git(*words):
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True).stdout.strip()

    if given:
        return given
    try:
        commit = git("describe", "--always")
        changed = git("diff", "--name-only", "HEAD", "--", ".", ":(exclude)bench/results/*.json")
        return commit + "-dirty" * bool(changed) or "unknown"
    except OSError:  # there is no git
        return "unknown"


def gpu():
    """Name, driver and architecture of the first GPU."""
    name, driver, capability = nvidia_smi("name", "driver_version", "compute_cap") or ("", "", "")
    if not re.fullmatch(r"\d+\.\d", capability):
        raise VariantError("this is measured on a GPU, and none can be used here (nvidia-smi does not tell one's compute "
                           "capability); nothing has been changed")
    return {"gpu": name, "driver": driver, "architecture": int(capability.replace(".", ""))}


def write(path, data):
    """All of a file of results or nothing."""
    write_file(path, rows_text(data))


def write_result(path, facts, commit, **found):
    """Writes what was found on a GPU, with what was measured: `commit`, or where it is None the one checked out."""
    write(path, {**facts, "commit": commit_of(commit), **found})
