"""The pages of the guide as Markdown for Sphinx, made of the files of the repository.

Texts stay as they are for those who read them elsewhere. Here their links are turned to pages of the site: a README, a
text under docs/ and a notebook are pages, a source is a listing, a picture is copied. What is made for the site alone
(the facts of a stage, the navigation) follows from the registry and the files that are there.
"""
from __future__ import annotations

import json
import os
import re
import shutil
from base64 import b64decode
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Iterator

from common.course.diff_model import without_markers
from common.course.ledger import watched_with
from common.course.registry import digits

# Bytes; what is larger, or no text, is there to be saved. The page of a listing is up to 12 times as large.
LARGEST_LISTING = 80_000
# The parts of the navigation, in order, and the pages of each, where * stands for one name. What no part has comes
# last.
PARTS = {
    "Start": ("first_hour", "usage", "stages/index", "measured"),
    "Theory": ("theory/memory_hierarchy", "theory/online_softmax", "theory/io_complexity", "theory/*"),
    "Practice": ("labs", "notebooks/index", "write_a_variant", "flash_attn"),
    "Look up": ("mistakes", "did_not_pay", "glossary"),
    "Teach": ("lecturer",),
    "Reference": ("vocabulary", "checks", "architecture", "readme", "common/*", "api"),
}
# Pages that are listed below a page, not beside it.
BELOW = {"stages/index": "stages/*", "labs": "labs/*", "notebooks/index": "notebooks/*", "api": "api/*/*"}


class SiteError(Exception):
    """What keeps the site from being made, in one sentence."""


def page_of(file: str) -> str | None:
    """The page that a file of the repository is shown as, by its name without .html; None for what is no page."""
    path = PurePosixPath(file)
    stage = re.fullmatch(r"stages/(\d\d)_\w+/(README|lab)\.md", file)
    if stage:
        return f"{'stages' if stage[2] == 'README' else 'labs'}/{stage[1]}"
    if path.suffix == ".ipynb":
        return str(path.with_suffix(""))
    if path.suffix != ".md":
        return None
    if path.parts[0] == "docs":
        path = path.relative_to("docs")
    elif path.name != "README.md":
        return None
    if path.name != "README.md":
        return str(path.with_suffix(""))
    if path.parts[0] == "common":
        return str(path.parent)
    return "readme" if len(path.parts) == 1 else str(path.with_name("index"))


@dataclass(frozen=True)
class Words:
    """The lines that a paragraph, a heading, a cell of a table or a link's definition begins and ends at, its links and
    its `code`."""
    first: int
    last: int
    links: list[tuple[str, str | None]]  # target; a picture's text, None for what is no picture
    code: list[str]


def words_of(markdown: str) -> Iterator[Words]:
    from markdown_it import MarkdownIt

    found: dict = {}
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown, found)
    for reference in found.get("references", {}).values():  # [label]: target
        yield Words(*reference["map"], [(reference["href"], None)], [])
    for token in tokens:
        if token.type != "inline" or not token.map:
            continue
        links: list[tuple[str, str | None]] = []
        for child in token.children or []:
            if child.type == "link_open" and child.info != "auto":
                links.append((str(child.attrs["href"]), None))
            elif child.type == "image":
                links.append((str(child.attrs["src"]), child.content))
        yield Words(*token.map, links, [child.content for child in token.children or [] if child.type == "code_inline"])


@dataclass
class Site:
    """What is to be shown, and its Markdown, under `source`."""
    root: Path
    source: Path
    stages: list[dict]                                      # as ./ladder list --json has them
    headers: dict[str, str] = field(default_factory=dict)   # header -> page of the API
    pages: dict[str, str] = field(default_factory=dict)     # file of the repository -> page
    listings: dict[str, str] = field(default_factory=dict)  # file -> what shows it, from the site's root
    words: dict[str, dict[str, str]] = field(default_factory=dict)  # page -> `code` -> what it links to
    made: dict[str, str] = field(default_factory=dict)      # marker, as <!-- ladder -->, and what goes in its place

    def __post_init__(self) -> None:
        for pattern in ("README.md", "docs/**/*.md", "stages/README.md", "stages/*/README.md", "stages/*/lab.md",
                        "common/*/README.md", "notebooks/README.md", "notebooks/*.ipynb"):
            for path in sorted(self.root.glob(pattern)):
                file = path.relative_to(self.root).as_posix()
                page = page_of(file)
                if page is not None and not file.startswith("docs/site/"):
                    self.pages[file] = page

    # --- Where a link leads ---------------------------------------------------------------------------------

    def target(self, file: str, link: str, picture: bool = False, line: int = 1) -> str:
        """`link`, which is in a line of `file`, as the site has it."""
        if re.match(r"[a-z]+:|[#/]", link):
            return link
        path, _, place = link.partition("#")
        found = os.path.normpath(os.path.join(os.path.dirname(file), path))
        if found.startswith("..") or not (self.root / found).exists():
            raise SiteError(f"{file}:{line}: links to {link}, which is not in the repository.")
        if f"{found}/README.md" in self.pages:
            found += "/README.md"
        if found in self.pages:
            return f"/{self.pages[found]}.md" + (f"#{place}" if place else "")
        if picture:
            return self.picture(found)
        return f"site:{self.listing(found)}" + (f"#{place}" if place else "")

    def picture(self, file: str) -> str:
        copy = self.source / "pictures" / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.root / file, copy)
        return f"/pictures/{file}"

    def listing(self, file: str) -> str:
        """What shows a file, or the files of a folder, from the site's root."""
        if file not in self.listings:
            path = self.root / file
            if path.is_dir():
                self.listings[file] = f"source/{file}/index.html"
                self.write_folder(file)
            elif path.stat().st_size > LARGEST_LISTING or not is_text(path):
                self.listings[file] = f"files/{file}"
            else:
                self.listings[file] = f"source/{file}.html"
                self.write_listing(file)
        return self.listings[file]

    def rewrite(self, file: str, markdown: str) -> str:
        """`markdown`, the text of `file`, with its links turned to the site; notes which of its `code` are files."""
        lines = markdown.split("\n")
        for words in words_of(markdown):
            where = f"{file}:{words.first + 1}"
            for link, picture in words.links:
                target = self.target(file, link, picture is not None, words.first + 1)
                if picture is not None and not picture.strip():
                    raise SiteError(f"{where}: the picture {link} has no words for those who cannot see it.")
                part = "\n".join(lines[words.first:words.last])
                part, count = re.subn(rf"(\](?:\(|: *)<?){re.escape(link)}(?=[\s>)]|$)", lambda m: m[1] + target, part)
                defined = re.search(rf"^ *\[[^\]]+\]: *<?{re.escape(link)}", markdown, re.M)
                if not count and not defined and f"]({target}" not in part:
                    raise SiteError(f"{where}: write the link to {link} as [text]({link}).")
                lines[words.first:words.last] = part.split("\n")
            for code in words.code:
                self.note_word(file, code)
        return "\n".join(lines)

    def note_word(self, file: str, code: str) -> None:
        """`code` that is a file of the repository, or a command that shows diffs, becomes a link."""
        target = "diff/index.html" if code == "./ladder diff" else None
        diff = re.fullmatch(r"\./ladder diff (\d\d) (\d\d)", code)
        if diff and any(f"{diff[1]}-{diff[2]}" == diff_of(stage) for stage in self.stages):
            target = f"diff/{diff[1]}-{diff[2]}.html"
        elif re.fullmatch(r"\w[\w./-]*\.\w+", code):
            # A name alone is of the folder that a README is about; in a lab it would be the student's file.
            name = code if "/" in code else f"{os.path.dirname(file)}/{code}"
            if (self.root / name).is_file() and ("/" in code or file.endswith("README.md")):
                page = self.headers.get(name) or self.pages.get(name)
                target = f"{page}.html" if page else self.listing(name)
        if target is not None and target != f"{self.pages[file]}.html":
            self.words.setdefault(self.pages[file], {})[code] = target

    # --- Pages ----------------------------------------------------------------------------------------------

    def write(self, page: str, markdown: str, orphan: bool = False) -> None:
        """`orphan`: reached by links alone, not by the navigation."""
        path = self.source / f"{page}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(("---\norphan: true\n---\n" if orphan else "") + markdown)

    def write_folder(self, folder: str) -> None:
        names = sorted(path.name for path in (self.root / folder).iterdir())
        items = [f"- [{name}]({self.target(f'{folder}/index', name)})" for name in names if name[0] not in "._"]
        self.write(f"source/{folder}/index", f"# {folder}\n\n" + "\n".join(items) + "\n", orphan=True)

    def write_listing(self, file: str) -> None:
        """Its lines have the numbers that they have in the file; those that only mark a lab are not shown."""
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import TextLexer, get_lexer_for_filename
        from pygments.util import ClassNotFound

        lines = without_markers((self.root / file).read_text())
        try:
            lexer = get_lexer_for_filename(file, stripnl=False)
        except ClassNotFound:
            lexer = TextLexer(stripnl=False)
        coloured = highlight("\n".join(line for _, line in lines), lexer, HtmlFormatter(nowrap=True)).split("\n")
        code = "".join(f'<span id="L{number}"><a class="linenos" href="#L{number}">{number:4}</a> {line}\n</span>'
                       for (number, _), line in zip(lines, coloured))
        readme = f"{os.path.dirname(file)}/README.md"
        about = [f"[In the API reference](/{self.headers[file]}.md)"] if file in self.headers else []
        about += [f"[The page about it](/{self.pages[readme]}.md)"] if readme in self.pages else []
        self.write(f"source/{file}", f"# {file}\n\n{', '.join(about)}\n\n"
                   f"```{{raw}} html\n:file: {os.path.basename(file)}.html\n```\n", orphan=True)
        (self.source / f"source/{file}.html").write_text(f'<div class="listing highlight"><pre>{code}</pre></div>\n')

    def write_texts(self) -> None:
        """Every page that is a file of the repository."""
        facts = {f"{folder_of(stage)}/README.md": self.facts for stage in self.stages}
        facts |= {f"{folder_of(stage)}/lab.md": self.facts_of_lab for stage in self.stages}
        stages = {folder_of(stage): stage for stage in self.stages}
        unused = {*self.made}
        for file, page in self.pages.items():
            text = self.notebook(file) if file.endswith(".ipynb") else (self.root / file).read_text()
            if not text.startswith("# "):
                raise SiteError(f"{file} does not begin with a title, '# ' and words.")
            if file.endswith("/lab.md"):
                text = text.partition("\n## Feedback\n")[0]  # what the grader says, not the handout
            text = self.rewrite(file, text)
            for marker in [marker for marker in self.made if f"\n{marker}\n" in text]:
                text = text.replace(marker, self.made[marker])
                unused.discard(marker)
            if file in facts:
                title, _, rest = text.partition("\n")
                stage = stages[os.path.dirname(file)]
                text = f"{title}\n\n{listed(facts[file](stage))}\n"
                text += (movie(stage) if file.endswith("/README.md") and stage["backend"] != "cpu" else "") + rest
            if page in BELOW:
                text += self.tree(self.matching([BELOW[page]], {page}))
            self.write(page, text + (self.navigation() if page == "index" else ""))
        if unused:
            raise SiteError(f"No page of the guide has a line {min(unused)}, where something made goes.")

    def facts(self, stage: dict) -> dict[str, str]:
        """What the registry and the files say of a stage."""
        number, folder, dims = digits(stage["number"]), folder_of(stage), stage["head_dims"]
        if isinstance(dims, dict):
            dims = f"d up to {dims['up_to']}"
        elif len(dims) > 2 and dims == list(range(dims[0], dims[-1] + 1, dims[0])):
            dims = f"d any multiple of {dims[0]} up to {dims[-1]}"
        else:
            dims = f"d = {', '.join(map(str, dims))}"
        passes = " and ".join(name for name in ("forward", "backward") if stage[name])
        before = next((s for s in self.stages if s["number"] == stage["before"] and s is not stage), None)
        after = [link_to(s) for s in self.stages if s["before"] == stage["number"] and s is not stage]
        watched = watched_with(self.root / folder / "README.md")
        kernels = [digits(s["number"]) for s in (before, stage) if s is not None and s["backend"] != "cpu"]
        sources = sorted(path.name for path in (self.root / folder).iterdir()
                         if path.suffix in (".cpp", ".cu") or path.name in ("kernel.hpp", "policy.hpp"))
        return {
            "Track": stage["track"],
            "Takes": f"{', '.join(stage['dtypes'])}; {dims}; {passes}",
            "Measured against": link_to(before) if before is not None else "",
            "Then": ", ".join(after),
            "Diff": f"[what changes from {digits(before['number'])} to {number}](site:diff/{diff_of(stage)}.html)"
                    if before is not None and diff_of(stage) else "",
            "Source": ", ".join(f"[{name}](site:{self.listing(f'{folder}/{name}')})" for name in sources),
            "Counts": f"`./ladder ledger {' '.join(kernels)}{'' if stage['forward'] else ' --backward'}`"
                      if stage["backend"] != "cpu" else "",
            "At work": f"[tile by tile](site:watch/{number}.html), as `./ladder watch {' '.join([number, *watched])}` plays it"
                       if stage["backend"] != "cpu" else "",
            "Test": f"`./ladder test {number}`",
            "Lab": f"[write it yourself](/labs/{number}.md)" if f"{folder}/lab.md" in self.pages else "",
        }

    def facts_of_lab(self, stage: dict) -> dict[str, str]:
        return {"Begin": f"`./ladder lab new {digits(stage['number'])} my_lab`", "Grade": "`./ladder lab grade my_lab`",
                "The stage, solved": link_to(stage)}

    def notebook(self, file: str) -> str:
        """A notebook as Markdown, with the outputs that it has stored."""
        cells = json.loads((self.root / file).read_text())["cells"]
        text, heading = "", ""
        for number, cell in enumerate(cells):
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                text += source + "\n\n"
                heading = (re.findall(r"^#+ +(.+)$", source, re.M) or [heading])[-1]
            elif cell["cell_type"] == "code":
                hidden = cell.get("metadata", {}).get("jupyter", {}).get("source_hidden")
                code = fenced(source, "python")
                text += f"<details><summary>Code</summary>\n\n{code}</details>\n\n" if hidden else code
                for place, output in enumerate(cell["outputs"]):
                    text += self.output(f"{page_of(file)}/{number}-{place}", output, heading)
        return text

    def output(self, name: str, output: dict, heading: str) -> str:
        data = output.get("data", {})
        for kind, ending in (("image/svg+xml", "svg"), ("image/png", "png")):
            if kind in data:
                image = "".join(data[kind])
                path = self.source / f"pictures/{name}.{ending}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(image.encode() if ending == "svg" else b64decode(image))
                return f"![What the code above draws: {heading}](/pictures/{name}.{ending})\n\n"
        if "text/markdown" in data:
            return "".join(data["text/markdown"]) + "\n\n"
        if "text/html" in data:
            return fenced("".join(data["text/html"]), "{raw} html")
        words = output.get("text", data.get("text/plain", output.get("traceback", "")))
        return fenced("".join(words), "text", "{.output}\n")

    # --- Navigation -----------------------------------------------------------------------------------------

    def tree(self, pages: list[str], caption: str = "") -> str:
        """Sphinx's list of pages below a page. It is not shown in the page."""
        names = {f"stages/{digits(s['number'])}": f"{digits(s['number'])} {s['name']}" for s in self.stages}
        names |= {"readme": "The map of the repository", "stages/index": "The ladder"}
        entries = "".join(f"{names[page]} </{page}>\n" if page in names else f"/{page}\n" for page in pages)
        caption = f":caption: {caption}\n" if caption else ""
        return f"\n\n```{{toctree}}\n:hidden:\n{caption}\n{entries}```\n" if pages else ""

    def matching(self, patterns: tuple[str, ...] | list[str], without: set[str]) -> list[str]:
        found: list[str] = []
        for pattern in patterns:
            expression = re.compile(re.escape(pattern).replace(r"\*", "[^/]*"))
            found += [page for page in sorted({*self.pages.values(), *self.headers.values()})
                      if expression.fullmatch(page) and page not in without and page not in found]
        return found

    def navigation(self) -> str:
        placed = {"index", *self.matching([*BELOW.values()], {*BELOW})}
        parts = {}
        for part, patterns in PARTS.items():
            parts[part] = self.matching(patterns, placed)
            placed |= {*parts[part]}
        parts[[*PARTS][-1]] += self.matching(["*", "*/*"], placed)
        return "".join(self.tree(pages, part) for part, pages in parts.items())


def folder_of(stage: dict) -> str:
    return f"stages/{digits(stage['number'])}_{stage['name']}"


def diff_of(stage: dict) -> str:
    """The page of a stage's diff, as ./ladder diff makes one where the stage before is of the same track."""
    return f"{digits(stage['before'])}-{digits(stage['number'])}" if stage["follows"] else ""


def movie(stage: dict) -> str:
    """What ./ladder watch makes of a stage, in its page; loaded when it comes into sight."""
    number = digits(stage["number"])
    return fenced(f'<iframe class="movie" src="../watch/{number}.html?embed" loading="lazy" '
                  f'title="stage {number} at work"></iframe>', "{raw} html") + "\n"


def link_to(stage: dict) -> str:
    return f"[{digits(stage['number'])} {stage['name']}](/stages/{digits(stage['number'])}.md)"


def listed(facts: dict[str, str]) -> str:
    return "{.facts}\n" + "".join(f"- **{name}:** {text}\n" for name, text in facts.items() if text)


def fenced(text: str, language: str, before: str = "") -> str:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{before}{fence}{language}\n{text.rstrip()}\n{fence}\n\n" if text.strip() else ""


def is_text(path: Path) -> bool:
    try:
        return "\0" not in path.read_text()
    except UnicodeDecodeError:
        return False
