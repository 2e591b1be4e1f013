"""The pages of the API reference: one for each header that Doxygen has read, from Doxygen's XML, by Breathe."""
from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Iterable
from xml.etree import ElementTree

from docs.site.pages import Site, SiteError


# What a page shows, in this order: types before what is made of them, and nothing private.
SECTIONS = """briefdescription detaileddescription derivedcompoundref innernamespace enum typedef public-type innerclass
public-static-attrib public-attrib public-static-func public-func var func friend user-defined define""".split()


def declarations_of(xml: Path) -> dict[str, list[str]]:
    """Each header, as the repository names it, and what it declares outside of classes, in its order."""
    lines: dict[str, dict[str, int]] = {}

    def declare(name: str, location: ElementTree.Element | None) -> None:
        if location is not None and not re.search(r"[<@:]|^operator", name):
            of_file = lines.setdefault(location.get("file", ""), {})
            of_file[name] = min(int(location.get("line", 0)), of_file.get(name, sys.maxsize))

    compounds = ElementTree.parse(xml / "index.xml").findall("compound")
    scopes = sorted((c.findtext("name", "") for c in compounds if c.get("kind") == "namespace"), key=len, reverse=True)
    for listed in compounds:
        kind = listed.get("kind")
        if kind not in ("file", "namespace", "class", "struct", "union", "concept"):
            continue
        compound = ElementTree.parse(xml / f"{listed.get('refid')}.xml").find("compounddef")
        assert compound is not None
        if kind == "file":
            lines.setdefault(compound.find("location").get("file", ""), {})  # type: ignore[union-attr]
        elif kind != "namespace":
            name = listed.findtext("name", "")
            scope = next((scope for scope in scopes if name.startswith(f"{scope}::")), None)
            declare(name if scope is None else name[len(scope) + 2:], compound.find("location"))
        if kind in ("file", "namespace"):
            for member in compound.findall("sectiondef/memberdef"):
                declare(member.findtext("name", ""), member.find("location"))
    return {file: sorted(names, key=names.__getitem__) for file, names in sorted(lines.items())}


def pages_of(headers: Iterable[str]) -> dict[str, str]:
    """Each header and its page."""
    pages = {file: "api/" + file.removeprefix("common/").removesuffix(".hpp") for file in headers}
    names = [Path(file).name for file in pages]
    twice = sorted(name for name in set(names) if names.count(name) > 1)
    if twice:  # Breathe finds a file by its name alone.
        raise SiteError(f"Two headers of the API are called {twice[0]}: give one of them another name.")
    return pages


def write_api(site: Site, declared: dict[str, list[str]]) -> None:
    """A page for each header, and for each module a table of its headers, which docs/api.md shows where it says
    <!-- headers of MODULE -->."""
    tables: dict[str, str] = {}
    for file, names in declared.items():
        page, module, name = site.headers[file], file.split("/")[1], Path(file).name
        site.write(page, f"# {module}/{name}\n\n```cpp\n#include \"{file}\"\n```\n\n"
                         f"[Source](site:{site.listing(file)})\n\n"
                         f"```{{doxygenfile}} {name}\n:sections: {' '.join(SECTIONS)}\n```\n")
        row = f"| [{name}](/{page}.md) | {', '.join(f'`{name}`' for name in names)} |\n"
        tables[module] = tables.get(module, "| header | declares |\n|---|---|\n") + row
    site.made |= {f"<!-- headers of {module} -->": table for module, table in tables.items()}


def write_graph(site: Site) -> None:
    """Which module includes which, drawn by Graphviz, in place of <!-- graph of modules -->."""
    uses: set[tuple[str, str]] = set()
    modules = {file.split("/")[1] for file in site.headers}
    for path in sorted(site.root.glob("common/*/*.[hc]pp")) + sorted(site.root.glob("stages/*/*.c*")):
        user = path.parent.name if path.parent.parent.name == "common" else "stages"
        for used in re.findall(r'^#include "common/(\w+)/', path.read_text(), re.M):
            if used != user and used in modules and user in modules | {"stages"}:
                uses.add((user, used))
    dot = shutil.which("dot")
    if dot is None:
        print("Left out: the picture of how the modules depend on each other (install graphviz).")
        site.made["<!-- graph of modules -->"] = ""
        return
    graph = "".join(f"{user} -> {used};" for user, used in sorted(uses))
    style = ('rankdir=LR; bgcolor="transparent"; node [shape=box, fontname="sans-serif", height=0.35]; '
             'edge [arrowsize=0.6];')
    drawn = subprocess.run([dot, "-Tsvg"], input=f"digraph {{ {style} {graph} }}", capture_output=True, text=True,
                           check=True).stdout
    svg = re.sub(r"\s+", " ", drawn[drawn.index("<svg"):]).replace('"black"', '"currentColor"')
    svg = re.sub(r"<!--.*?-->|<title>.*?</title>", "", svg).replace("<text ", '<text fill="currentColor" ')
    words = "; ".join(f"{user} uses {', '.join(sorted(b for a, b in uses if a == user))}"
                      for user in sorted({user for user, _ in uses}))
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{words}" ', 1)
    site.made["<!-- graph of modules -->"] = ("An arrow leads from a part to one that it uses.\n\n"
                                              f"```{{raw}} html\n<div class=\"graph\">{svg}</div>\n```")
