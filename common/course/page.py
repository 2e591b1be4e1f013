"""What the HTML pages of the course share: one file each, which needs no network and no other file; the colours, by day and
by night; code in colours. page.css and page.js are parts of each."""

import functools
import html
import re
from collections.abc import Iterable
from pathlib import Path

from common.course.diff_model import Line
from common.course.registry import Failure

try:
    from pygments.lexers import CppLexer
    from pygments.token import Comment, Keyword, Literal, Name, Token
except ImportError:
    raise Failure("this Python has no Pygments, which colours the code: ./ladder setup makes one that has.") from None

HERE = Path(__file__).resolve().parent
# name: (light, dark)
PALETTE = {
    "page": ("#ffffff", "#131416"), "ink": ("#1f2328", "#d6d9dd"), "muted": ("#59636e", "#9aa2ab"),
    "line": ("#d1d9e0", "#353a41"), "card": ("#f5f7f9", "#1c1f23"), "link": ("#0a58b4", "#74b4ff"),
    "gone": ("#ffebe9", "#38191b"), "gone-word": ("#ffb8b0", "#80302f"),
    "come": ("#e4f8e9", "#122d1b"), "come-word": ("#96dfa6", "#1f6b38"),
    "moved": ("#e6edfd", "#1a2949"), "empty": ("#f5f7f9", "#191b1e"),
    "note": ("#fff8e3", "#2a2412"), "note-edge": ("#d9a521", "#a8821f"),
    "keyword": ("#7a2ea8", "#d3a6ff"), "type": ("#0b5394", "#7cc0ff"), "string": ("#0a3069", "#a5d6ff"),
    "number": ("#0b5394", "#7cc0ff"), "preproc": ("#8a4600", "#ffb066"), "comment": ("#57606a", "#9aa2ab"),
}
THEME_BUTTON = '<button id="theme" title="light, dark, or as the system has it">theme: auto</button>'
CUDA_WORD = re.compile(r"__\w+__|__sync\w+")  # __global__, __syncthreads and the like


def document(title: str, body: str, part: str) -> str:
    """The page of a title and a body, with its parts: page.css, page.js, and `part` with these endings."""
    def block(side: int) -> str:
        return "".join(f"--{name}:{colours[side]};" for name, colours in PALETTE.items())

    themes = (f":root{{color-scheme:light;{block(0)}}}\n"
              f"@media screen and (prefers-color-scheme:dark){{"
              f":root:not([data-theme=light]){{color-scheme:dark;{block(1)}}}}}\n"
              f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{block(1)}}}}}\n")
    early = "try{document.documentElement.dataset.theme=localStorage.getItem('theme')||'auto'}catch{}"
    return ('<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
            f"<title>{escaped(title)} · FlashLadder</title>\n"
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<style>\n{themes}{asset('page.css')}{asset(part + '.css')}</style>\n<script>{early}</script></head>\n<body>\n{body}\n"
            f"<script>\n{asset('page.js')}{asset(part + '.js')}</script>\n</body></html>\n")


def asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def escaped(plain_text: str) -> str:
    return html.escape(plain_text, quote=True)


class Painted:
    """A line of code and its colours: (begin, end, class) of all parts that have one."""

    def __init__(self, line: Line):
        self.line = line
        self.colours: list[tuple[int, int, str]] = []

    def html(self, marked: Iterable[tuple[int, int]] = ()) -> str:
        """The line with its colours, and with <mark> around the marked parts."""
        code, marks = self.line.shown, list(marked)
        cuts = sorted({0, len(code), *(at for begin, end, _ in self.colours for at in (begin, end)),
                       *(at for part in marks for at in part)})
        out, open_mark = [], False
        for begin, end in zip(cuts, cuts[1:]):
            is_marked = any(first <= begin < last for first, last in marks)
            if is_marked != open_mark:
                out.append("<mark>" if is_marked else "</mark>")
                open_mark = is_marked
            name = next((name for first, last, name in self.colours if first <= begin < last), "")
            piece = escaped(code[begin:end])
            out.append(f'<span class="{name}">{piece}</span>' if name else piece)
        return "".join(out) + ("</mark>" if open_mark else "")


def coloured(lines: list[Line]) -> list[Painted]:
    """The lines with the colours of Pygments, to which CUDA's words are keywords too."""
    painted = [Painted(line) for line in lines]
    for row, begin, end, name in colours_of("\n".join(line.shown for line in lines)):
        painted[row].colours.append((begin, end, name))
    return painted


@functools.cache  # a stage's source is on several pages of the guide
def colours_of(text: str) -> list[tuple[int, int, int, str]]:
    """(row, begin, end, class) of all parts of a source that have a colour, from top to bottom."""
    found: list[tuple[int, int, int, str]] = []
    row, column = 0, 0
    for kind, value in CppLexer(stripnl=False, ensurenl=False).get_tokens(text):
        name = colour_name(kind, value)
        for turn, piece in enumerate(value.split("\n")):
            if turn:
                row, column = row + 1, 0
            if name and piece.strip():
                if found and (found[-1][0], *found[-1][2:]) == (row, column, name):
                    found[-1] = (row, found[-1][1], column + len(piece), name)
                else:
                    found.append((row, column, column + len(piece), name))
            column += len(piece)
    return found


def colour_name(kind: Token, value: str) -> str:
    for token, name in ((Comment.Preproc, "p"), (Comment.PreprocFile, "s"), (Comment, "o"), (Keyword.Type, "t"),
                        (Keyword, "k"), (Literal.String, "s"), (Literal.Number, "n")):
        if kind in token:
            return name
    return "k" if kind in Name and CUDA_WORD.fullmatch(value) else ""
