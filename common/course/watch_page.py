"""The page of ./ladder watch as one HTML file that needs nothing else. What it shows is movie.py's; watch_page.js plays it."""

import base64
import gzip
import json
import math
from typing import Any

from common.course.diff_model import Line
from common.course.ledger import ratio
from common.course.page import coloured, document, escaped
from common.course.registry import ROOT, SourceLine

MOST_CHANGES = 6  # that are told of two stages
# The movie is packed: text of 2 MB would be slow to send.
UNPACK = """window.movie = (async () => {
  const packed = Uint8Array.from(atob(document.getElementById("movie").textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
})();"""


def page(movie: dict[str, Any]) -> str:
    """The file that plays a movie."""
    rungs = movie["rungs"]
    packed = base64.b64encode(gzip.compress(json.dumps(movie, separators=(",", ":")).encode(), mtime=0)).decode()
    title = f"{' and '.join(rung['digits'] for rung in rungs)} at work: {rungs[-1]['title']}"
    body = (f'{changed(rungs, movie["clocks"])}<main id="watch"><h1>{escaped(title)}</h1><noscript>This page needs JavaScript.</noscript>'
            f'</main>\n<script id="movie" type="text/plain">{packed}</script>\n<script>\n{UNPACK}\n</script>')
    return document(title, body, "watch_page")


def changed(rungs: list[dict[str, Any]], clocks: str) -> str:
    """Of two stages: the counts that differ most, in a line each, and among them the clocks, by that name."""
    if len(rungs) != 2:
        return ""
    before, after = ({counter["label"]: counter["total"] for counter in rung["counters"]} | {clocks: rung["end"]}
                     for rung in rungs)
    rows = sorted((-abs(math.log(max(after.get(label, 0), 0.5) / max(before.get(label, 0), 0.5))), label)
                  for label in {**before, **after} if before.get(label, 0) != after.get(label, 0))
    if not rows:
        return ""
    lines = [f"<tr><th scope='row'>{escaped(label)}</th><td>{before.get(label, 0):,}</td><td>{after.get(label, 0):,}</td>"
             f"<td>{ratio(before.get(label, 0), after.get(label, 0))}</td></tr>" for _, label in rows[:MOST_CHANGES]]
    names = "".join(f"<th scope='col'>{escaped(rung['digits'])}</th>" for rung in rungs)
    return (f'<section class="card changed" aria-label="what changed"><details open><summary>What differs most in what was '
            f"counted</summary><table><tr><th></th>{names}<th></th></tr>{''.join(lines)}</table></details></section>\n")


def html_lines(lines: list[SourceLine]) -> list[str]:
    """The lines of a source in HTML, with colours."""
    return [painted.html() for painted in coloured([Line(line.number, line.text, "") for line in lines])]


def shown_path(lines: list[SourceLine]) -> str:
    file = lines[0].file
    return str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else file.name
