"""What all scripts here share: the repository, the commit and the GPU that a result is of, the file that it goes to, and
the blocks of a Markdown file that are generated, between <!-- NAME:begin --> and <!-- NAME:end -->."""

import argparse
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class NoMarkers(Exception):
    """One sentence for the user."""


def with_block(path, name, block, text=None):
    """The file's text as it is, or another text of it, and as it would be with this block between the markers of this
    name."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text is None:
        text = path.read_text() if path.exists() else ""
    if text.count(begin) != 1 or text.count(end) != 1:
        raise NoMarkers(f"{path.relative_to(ROOT)} has no place for a table: put {begin} and {end} there, once each")
    head, rest = text.split(begin)
    return text, f"{head}{begin}\n{block.rstrip()}\n{end}{rest.split(end)[1]}"


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


def commit_of(given):
    """The commit that was given, or the one that the sources are at; results are no sources."""
    def git(*words):
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True).stdout.strip()

    if given:
        return given
    try:
        commit = git("describe", "--always")
        return commit + "-dirty" * bool(git("diff", "--name-only", "HEAD", "--", ".", ":(exclude)bench/results")) or "unknown"
    except OSError:  # there is no git
        return "unknown"
