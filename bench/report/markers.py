"""The blocks of a Markdown file that are generated: what stands between <!-- NAME:begin --> and <!-- NAME:end -->."""

from common.course.registry import ROOT


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
