"""Formulas of the guide: TeX, as the Markdown has it between dollars, to MathML, when the site is built.

Browsers draw MathML by themselves: no JavaScript, no font, nothing to load. latex2mathml does the translation. What
it lets pass in silence (commands it does not know, braces that do not match) is an error here, and what browsers
leave out of MathML 3 (alignment, names of spaces) is put in a form that they draw.
"""
from __future__ import annotations

import re
import unicodedata
from xml.etree import ElementTree

NAMESPACE = "http://www.w3.org/1998/Math/MathML"
# Environments that latex2mathml does not know, or numbers, and what draws the same.
SAME_AS = {"aligned": "split", "align": "align*", "equation": "equation*", "gathered": "matrix"}
SPACES = {"thin": 3, "medium": 4, "thick": 5}  # in eighteenths of an em, as TeX has them
ACCENTS = "~^\u00af\u2015\u2192\u02c6\u02dc\u02d9\u00b4\u0060"


class FormulaError(ValueError):
    """A formula that cannot be drawn; the message is a sentence for its author."""


def to_mathml(tex: str, display: bool = False) -> str:
    """The element <math> of a formula, inline or as a block of its own. Raises FormulaError."""
    from latex2mathml.converter import convert

    require_balanced(tex)
    known = re.sub(r"\\(begin|end)\{(\w+)\}",
                   lambda m: f"\\{m[1]}{{{SAME_AS.get(m[2], m[2])}}}", tex.strip())
    try:
        text = convert(known, display="block" if display else "inline")
    except Exception as error:  # latex2mathml has a class for each mistake, mostly without a message
        raise FormulaError(f"'{tex}' is no formula that latex2mathml reads: {type(error).__name__}.") from error
    try:
        math = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise FormulaError(f"'{tex}' has an & outside an environment that aligns, or another stray sign.") from error
    for element in math.iter():
        element.tag = element.tag.removeprefix(f"{{{NAMESPACE}}}")
        unknown = re.search(r"\\\w*", element.text or "")
        if unknown:
            raise FormulaError(f"'{tex}' has {unknown[0]}, which latex2mathml does not know.")
        if element.get("linebreak"):
            raise FormulaError(f"'{tex}' breaks a line outside an environment: put it into aligned.")
    tidy(math)
    math.set("xmlns", NAMESPACE)
    math.set("alttext", tex.strip())
    return ElementTree.tostring(math, encoding="unicode", short_empty_elements=False)


def require_balanced(tex: str) -> None:
    """latex2mathml takes what is missing for empty."""
    depth = 0
    for brace in re.findall(r"(?<!\\)(?:\\\\)*([{}])", tex):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            break
    if depth:
        raise FormulaError(f"'{tex}' has braces that do not match.")
    if not tex.strip():
        raise FormulaError("There is a formula with nothing in it.")


def tidy(math: ElementTree.Element) -> None:
    """Puts what browsers do not read into words that they do."""
    for parent in math.iter():
        for place, element in enumerate(parent):
            text = element.text or ""
            if element.tag == "mi" and len(text) == 1 and unicodedata.category(text) in ("Sm", "Ps", "Pe"):
                element.tag = "mo"  # a plus-minus, an arrow, a bracket: taken for a variable
                if unicodedata.category(text) != "Sm":
                    element.set("stretchy", "false")
            if element.tag in ("mo", "mi") and len(text) > 1 and text.isalpha():
                name_of_function(element, before=parent[place - 1] if place else None,
                                 after=parent[place + 1] if place + 1 < len(parent) else None)
            if element.tag in ("msub", "msup", "msubsup") and len(element) and (element[0].text or "").isalpha() and \
                    len(element[0].text or "") > 1:
                name_of_function(element[0], before=None, after=element)
            if element.tag == "mspace":
                named = re.fullmatch(r"(negative)?(?:very)*(thin|medium|thick)mathspace", element.get("width", ""))
                if named:
                    element.set("width", f"{'-' if named[1] else ''}{SPACES[named[2]] / 18:.3f}em")
            if element.tag == "mtd" and element.get("columnalign"):
                element.set("style", f"text-align: {element.attrib.pop('columnalign')}")
            if element.tag in ("mover", "munder") and len(element) == 2 and (element[1].text or "") in ACCENTS and \
                    element[1].text:
                element.set("accent" if element.tag == "mover" else "accentunder", "true")
            if element.tag == "mrow" and len(element) == 1 and element[0].text == ",":
                close_up(element[0])  # {,} of 1{,}000
            if element.tag == "mo" and text == "/":
                close_up(element)


def close_up(element: ElementTree.Element) -> None:
    element.set("lspace", "0")
    element.set("rspace", "0")


def name_of_function(name: ElementTree.Element, before: ElementTree.Element | None,
                     after: ElementTree.Element | None) -> None:
    """max, log, rowsum: upright, with a thin space to what it is not bracketed with."""
    name.tag = "mo"
    name.set("form", "prefix")
    bracket = after is not None and after.tag == "mo" and (after.text or "") in "([{|\u2308\u230a"
    fenced = after is not None and len(after) > 0 and after[0].get("fence") == "true"
    factor = before is not None and (before.tag != "mo" or (before.text or " ") in ")]}|\u2309\u230b")
    name.set("lspace", f"{3 / 18 if factor else 0:.3f}em")
    name.set("rspace", f"{0 if bracket or fenced or after is None else 3 / 18:.3f}em")
