"""The guide's own part of Sphinx: formulas as MathML, links to what is no page, links from words of code.

- Formulas are drawn by mathml.py; one that cannot be drawn is a warning, and so an error of the build.
- `site:PATH` in a link is a file of the site that is no page of Sphinx's: a diff, the listing of a source.
- `code` that names a file of the repository, a command `./ladder diff A B` or a declaration of the API reference
  becomes a link to it.
- Breathe shows the namespaces that a header is in, once for each header: they are left out.
"""
from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.osutil import relative_uri

from docs.site.mathml import FormulaError, to_mathml

logger = logging.getLogger(__name__)


def visit_formula(writer: Any, node: nodes.Element) -> None:
    block = isinstance(node, nodes.math_block)
    try:
        math = to_mathml(node.astext(), display=block)
    except FormulaError as error:
        logger.warning("%s", error, location=node, type="formula")
        raise nodes.SkipNode from error
    writer.body.append(f'<div class="formula" role="group" tabindex="0">{math}</div>\n' if block else math)
    raise nodes.SkipNode


def without_namespaces(app: Sphinx, tree: nodes.document) -> None:
    for declaration in list(tree.findall(addnodes.desc)):
        if declaration.get("domain") == "cpp" and declaration[0].astext().startswith("namespace "):
            place = declaration.parent.index(declaration)
            declaration.parent[place:place + 1] = declaration[1].children
    for heading in tree.findall(nodes.rubric):
        heading["ids"] = []  # Breathe gives the same to each "Public Functions".


def namespaces_of(env: BuildEnvironment) -> list[Any]:
    symbols = env.domains.cpp_domain.data["root_symbol"].get_all_symbols()
    return [symbol for symbol in symbols if symbol.declaration is not None and symbol.declaration.objectType == "type"
            and any(symbol.children_recurse_anon)]


def know_names(app: Sphinx, env: Any) -> None:
    """Once all pages are read: the anchors that namespaces would have, and the names that code can link to."""
    env.site_namespaces = {symbol.declaration.get_newest_id() for symbol in namespaces_of(env)}
    for entries in env.domains.index_domain.entries.values():
        entries[:] = [entry for entry in entries if entry[2] not in env.site_namespaces]
    found: dict[str, set[tuple[str, str]]] = {}
    objects = list(env.domains.cpp_domain.get_objects())
    classes = {name for name, _, kind, _, _, _ in objects if kind in ("class", "struct", "union", "enum")}
    for name, _, kind, page, anchor, _ in objects:
        scope, _, last = name.rpartition("::")
        if scope not in classes and len(last) > 2 and kind not in ("functionParam", "templateParam"):
            for word in {name, last}:
                found.setdefault(word, set()).add((page, anchor))
    # A name that several headers declare says too little.
    env.site_names = {word: min(places) for word, places in found.items() if len({page for page, _ in places}) == 1}


def unlink_namespaces(app: Sphinx, tree: nodes.document, page: str) -> None:
    """What stands in front of :: has no place of its own."""
    for link in list(tree.findall(nodes.reference)):
        if (link.get("refid") or link.get("refuri", "").partition("#")[2]) in app.env.site_namespaces:
            link.replace_self(link.children)


def forget_namespaces(app: Sphinx) -> list[Any]:
    """Once all links are made, so that a search does not find them."""
    for symbol in namespaces_of(app.env):
        symbol.declaration = symbol.docname = symbol.line = None
    return []


def link_words_of_code(app: Sphinx, tree: nodes.document, page: str) -> None:
    here = app.builder.get_target_uri(page)
    for word in list(tree.findall(nodes.literal)):
        if any(isinstance(parent, (nodes.reference, nodes.title)) for parent in ancestors(word)):
            continue
        text = word.astext()
        target = app.config.site_words.get(page, {}).get(text)
        if target is None:
            name = re.match(r"[\w:]+(?=$|[(<])", text)
            place = app.env.site_names.get(name[0]) if name else None
            if place is None or place[0] == page:
                continue
            target = f"{app.builder.get_target_uri(place[0])}#{place[1]}"
        word.replace_self(nodes.reference("", "", word.deepcopy(), refuri=link_from(here, target), internal=True,
                                          classes=["word"]))


def link_from(page: str, target: str) -> str:
    """Sphinx's own leaves the anchor out."""
    path, hash_sign, anchor = target.partition("#")
    return relative_uri(page, path) + hash_sign + anchor


def ancestors(node: nodes.Node) -> list[nodes.Node]:
    found = []
    while node.parent is not None:
        node = node.parent
        found.append(node)
    return found


def resolve_site_links(app: Sphinx, tree: nodes.document, page: str) -> None:
    here = app.builder.get_target_uri(page)
    for link in tree.findall(nodes.reference):
        if link.get("refuri", "").startswith("site:"):
            link["refuri"] = link_from(here, link["refuri"].removeprefix("site:"))
            link["internal"] = True


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", inline_renderers=(visit_formula, None), block_renderers=(visit_formula, None))
    app.add_config_value("site_words", {}, "env", dict)
    app.connect("doctree-read", without_namespaces, priority=400)  # before Sphinx looks for what is in the page
    app.connect("env-updated", know_names)
    app.connect("html-collect-pages", forget_namespaces)
    app.connect("doctree-resolved", resolve_site_links)
    app.connect("doctree-resolved", link_words_of_code)
    app.connect("doctree-resolved", unlink_namespaces)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
