"""How the Python programs behind ./ladder begin and end: with streams that may be closed or full, with an interrupt that
leaves nothing half done and shows no traceback, and with files that are complete or not there at all."""

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn

from common.course.registry import Failure


NOT_DONE = 2  # the exit status; 1: done, and something that was tried has failed


# Ctrl-C ends the program without a word also while what takes a second to import, and is imported after this, is imported.
if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Interrupted(KeyboardInterrupt):
    """By SIGTERM, which ends a program as Ctrl-C does."""


def write_file(path: Path, data: str | bytes) -> None:
    """All of it or nothing: written beside its place, then moved there. What was there before stays until then."""
    if path.exists() and not path.is_file():
        raise OSError(22, "it is a folder" if path.is_dir() else "it is a pipe or a device", str(path))
    if path.exists() and any(is_stream(path, number) for number in range(3)):  # such as /dev/stdout, which is a link
        raise OSError(22, "stdin, stdout or stderr is there", str(path))
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data.encode() if isinstance(data, str) else data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def is_stream(path: Path, number: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(number))
    except OSError:  # it is closed
        return False


class Parser(argparse.ArgumentParser):
    """One that says in one sentence what is wrong."""

    def error(self, message: str) -> NoReturn:
        complain(f"ladder: {message}: {self.prog} --help shows how it is called.")
        sys.exit(NOT_DONE)

    def _print_message(self, message: str, file: IO[str] | None = None) -> None:
        """Where argparse would pass over that it cannot be written."""
        (file or sys.stdout).write(message)


def complain(sentence: str) -> None:
    """On stderr, as far as that can be."""
    try:
        print(sentence, file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def run(main: Callable[[], int | str | None]) -> NoReturn:
    """Ends the program with what main returns or exits with: a status, or a sentence."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed: no file may get its number
            setattr(sys, name, open(os.devnull, mode))
    sys.stdout.reconfigure(errors="replace")
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:
        signal.signal(signal.SIGTERM, interrupt)
    status: int | str | None = 1
    try:
        try:
            status = main()
        except SystemExit as end:
            status = end.code
        sys.stdout.flush()
    except KeyboardInterrupt as why:
        number = signal.SIGTERM if isinstance(why, Interrupted) else signal.SIGINT
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    except BrokenPipeError:  # as of `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        status = 0
    except OSError as error:
        status = f"ladder: {error.filename or 'stdout'} cannot be used: {error.strerror}"
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if isinstance(status, str):
        complain(status)
        status = NOT_DONE
    sys.exit(status or 0)


def run_verb(parser: Callable[[], Parser], act: Callable[[argparse.Namespace], None]) -> NoReturn:
    """As run, of a verb of ./ladder: what it does with its arguments. A Failure is its sentence."""
    def main() -> int:
        try:
            act(parser().parse_args())
        except Failure as failure:
            complain(f"ladder: {failure}")
            return NOT_DONE
        return 0

    run(main)


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise Interrupted
