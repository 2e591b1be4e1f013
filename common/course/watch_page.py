"""The page of ./ladder watch as one HTML file that needs nothing else. What it shows is movie.py's; watch_page.js plays it."""

import base64
import gzip
import json
from typing import Any

from common.course.diff_model import Line
from common.course.page import coloured, document
from common.course.registry import ROOT, SourceLine

# The movie is packed: text of 2 MB would be slow to send.
UNPACK = """window.movie = (async () => {
  const packed = Uint8Array.from(atob(document.getElementById("movie").textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
})();"""


def page(movie: dict[str, Any]) -> str:
    """The file that plays a movie."""
    rungs = movie["rungs"]
    packed = base64.b64encode(gzip.compress(json.dumps(movie, separators=(",", ":")).encode(), mtime=0)).decode()
    body = ('<main id="watch"><noscript>This page needs JavaScript.</noscript></main>\n'
            f'<script id="movie" type="text/plain">{packed}</script>\n<script>\n{UNPACK}\n</script>')
    title = " and ".join(rung["digits"] for rung in rungs)
    return document(f"{title} at work: {rungs[-1]['title']}", body, "watch_page")


def html_lines(lines: list[SourceLine]) -> list[str]:
    """The lines of a source in HTML, with colours."""
    return [painted.html() for painted in coloured([Line(line.number, line.text, "") for line in lines])]


def shown_path(lines: list[SourceLine]) -> str:
    file = lines[0].file
    return str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else file.name
