"""Tests of the guide (docs/site): of its parts, and of a site that ./ladder docs has made.

Usage: site_test.py [unittest options]            the parts: links, formulas, notebooks, and a small site, in seconds
       site_test.py SITE [unittest options]       the site: every link, every page; in Chromium one path through it
Exits 77 where what it needs is not there, and says what.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import urllib.parse
from html.parser import HTMLParser
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1]
SITE = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 and Path(sys.argv[1]).is_dir() else None

try:
    import latex2mathml  # noqa: F401
    import markdown_it  # noqa: F401
    import sphinx  # noqa: F401
    if SITE:
        import selenium  # noqa: F401
except ImportError as missing:
    print(f"skipped: this Python has no {missing.name}: ./ladder docs installs what the guide needs")
    sys.exit(77)

from docs.site.mathml import FormulaError, to_mathml  # noqa: E402
from docs.site.pages import Site, SiteError, page_of  # noqa: E402

STAGES = [{"number": n, "name": name, "title": "t", "idea": "i", "claim": "c", "before": before, "dtypes": ["fp32"],
           "head_dims": dims, "backend": backend, "forward": True, "backward": n == 0,
           "track": "forward on a GPU" if n else "on a CPU", "follows": n == 11}
          for n, name, before, dims, backend in ((0, "plain", 0, {"up_to": 256}, "cpu"),
                                                 (10, "kernel", 0, [32, 64], "emulator"),
                                                 (11, "next", 10, [32], "emulator"))]
TABLE = "| stage |\n|---|\n" + "".join(
    f"| [{stage['name']}](../stages/{stage['number']:02d}_{stage['name']}/README.md) |\n" for stage in STAGES)
PIXEL = base64.b64encode(base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")).decode()


def notebook(*cells):
    return json.dumps({"cells": [dict(zip(("cell_type", "source", "outputs", "metadata"), cell)) for cell in cells]})


class Repository(unittest.TestCase):
    """Each test has a small repository with a file of each kind."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="site test ")
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for file, text in {
            "README.md": "# A repository\n[The guide](docs/index.md), [licence](LICENSE)",
            "LICENSE": "Do as you like.\n",
            "CMakeLists.txt": "project(flashladder VERSION 1.2.3 LANGUAGES CXX)\n",
            "docs/index.md": "# Front\n\n<!-- ladder -->\n\n[Theory](theory/proof.md), [labs](labs.md)\n",
            "docs/labs.md": "# Labs\nOne a stage.\n",
            "docs/api.md": "# API\n\n<!-- graph of modules -->\n",
            "docs/theory/proof.md": "# Proof\n## A step\nIt is $e^{x}$, as in\n"
                                    "[the kernel](../../stages/10_kernel/attention.cu#L5).\n",
            "stages/README.md": "# Stages\n`./ladder diff 10 11` and `./ladder diff 00 10`, or `tests/a_test.py`\n",
            "stages/00_plain/README.md": "# 00 plain: the definition\nText.\n",
            "stages/00_plain/attention.cpp": "int a;\n",
            "stages/00_plain/lab.md": "# Lab 00\n`attention.cpp` is yours.\n\n## Feedback\n- too many: why?\n",
            "stages/10_kernel/README.md": "# 10 kernel: on a GPU\n![A picture](p.png) beside `attention.cu`\n",
            "stages/10_kernel/attention.cu": "// given: int x;\nint a;\n  // lab: one line\n  //   and more\n"
                                             "int b;\n// end of lab\n\nint c;\n",
            "stages/10_kernel/claim.cpp": "int claim;\n",
            "stages/11_next/README.md": "# 11 next\nText.\n",
            "stages/11_next/attention.cu": "int d;\n",
            "tests/a_test.py": "import sys\n",
            "notebooks/README.md": "# Notebooks\n[one](1_one.ipynb)\n",
            "notebooks/1_one.ipynb": notebook(
                ["markdown", ["# One\n", "\n", "With [stage 10](../stages/10_kernel/README.md).\n", "## Part\n"]],
                ["code", ["print(1)"], [{"output_type": "stream", "text": ["1\n"]},
                                        {"output_type": "display_data", "data": {"image/png": PIXEL}}], {}],
                ["code", ["draw()"], [], {"jupyter": {"source_hidden": True}}]),
        }.items():
            self.put(file, text)
        (self.root / "stages/10_kernel/p.png").write_bytes(base64.b64decode(PIXEL))

    def put(self, file, text):
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def site(self, **more):
        return Site(self.root, self.root / "build/source", STAGES, **more)

    def page(self, page):
        return (self.root / f"build/source/{page}.md").read_text()

    def written(self):
        site = self.site()
        site.made = {"<!-- ladder -->": site.rewrite("docs/index.md", TABLE), "<!-- graph of modules -->": ""}
        site.write_texts()
        return site


class LinkTest(Repository):
    def test_files_and_their_pages(self):
        for file, page in (("README.md", "readme"), ("docs/index.md", "index"),
                           ("docs/theory/proof.md", "theory/proof"),
                           ("stages/README.md", "stages/index"), ("stages/13_name/README.md", "stages/13"),
                           ("stages/13_name/lab.md", "labs/13"), ("common/simt/README.md", "common/simt"),
                           ("notebooks/README.md", "notebooks/index"), ("notebooks/2_tiles.ipynb", "notebooks/2_tiles"),
                           ("stages/13_name/attention.cu", None), ("stages/13_name/notes.md", None)):
            self.assertEqual(page_of(file), page, file)

    def test_each_kind_of_link(self):
        site = self.site()
        for file, link, target in (
                ("README.md", "docs/theory/proof.md", "/theory/proof.md"),
                ("README.md", "docs/theory/proof.md#a-step", "/theory/proof.md#a-step"),
                ("docs/theory/proof.md", "../../stages/10_kernel/README.md", "/stages/10.md"),
                ("docs/labs.md", "../stages/00_plain/lab.md", "/labs/00.md"),
                ("docs/labs.md", "../stages/10_kernel", "/stages/10.md"),
                ("docs/labs.md", "../notebooks/1_one.ipynb", "/notebooks/1_one.md"),
                ("README.md", "LICENSE", "site:source/LICENSE.html"),
                ("README.md", "tests", "site:source/tests/index.html"),
                ("README.md", "https://example.org/a.md", "https://example.org/a.md"),
                ("README.md", "#part", "#part")):
            self.assertEqual(site.target(file, link), target, link)
        self.assertIn("a_test.py", self.page("source/tests/index"))

    def test_a_link_to_nothing_is_an_error_that_names_its_place(self):
        for link in ("gone.md", "../outside.md", "docs/gone/a.cpp#L3"):
            with self.assertRaisesRegex(SiteError, rf"README.md:2: links to {re.escape(link)}"):
                self.site().rewrite("README.md", f"# A\n[b]({link})\n")

    def test_text_is_changed_in_links_alone(self):
        text = "# A\n\n[b](docs/labs.md), `[b](docs/labs.md)`\n\n    [b](docs/labs.md)\n\n```\n[b](docs/labs.md)\n```\n"
        changed = self.site().rewrite("README.md", text).split("\n")
        self.assertEqual(changed[2].partition(",")[0], "[b](/labs.md)")
        self.assertEqual(changed[3:], text.split("\n")[3:])

    def test_links_in_tables_definitions_and_across_lines(self):
        text = "# A\n| a | [b](docs/labs.md) |\n|---|---|\n| [c](LICENSE) | [d] |\n\n" \
               "[long\ntext](docs/labs.md 'title')\n\n" \
               "[d]: docs/theory/proof.md#a-step\n"
        changed = self.site().rewrite("README.md", text)
        self.assertIn("[b](/labs.md)", changed)
        self.assertIn("[c](site:source/LICENSE.html)", changed)
        self.assertIn("text](/labs.md 'title')", changed)
        self.assertIn("[d]: /theory/proof.md#a-step", changed)

    def test_a_picture_is_copied_and_must_have_words(self):
        site = self.site()
        self.assertIn("![A picture](/pictures/stages/10_kernel/p.png)",
                      site.rewrite("stages/10_kernel/README.md", "# A\n![A picture](p.png)"))
        self.assertTrue((self.root / "build/source/pictures/stages/10_kernel/p.png").exists())
        with self.assertRaisesRegex(SiteError, "README.md:2: the picture p.png has no words"):
            site.rewrite("stages/10_kernel/README.md", "# A\n![](p.png)")

    def test_a_listing_has_no_marks_of_labs(self):
        site = self.site()
        site.listing("stages/10_kernel/attention.cu")
        code = (self.root / "build/source/source/stages/10_kernel/attention.cu.html").read_text()
        text = re.sub(r"<[^>]*>", "", code)
        self.assertRegex(text, r"^ *2 int a;\n *5 int b;\n *7 \n *8 int c;\n$")
        self.assertEqual(site.target("README.md", "stages/10_kernel/attention.cu#L5"),
                         "site:source/stages/10_kernel/attention.cu.html#L5")
        self.assertIn('id="L5"', code)

    def test_what_is_no_text_is_there_to_be_saved(self):
        (self.root / "data.npz").write_bytes(b"\0\1\2")
        self.assertEqual(self.site().target("README.md", "data.npz"), "site:files/data.npz")

    def test_words_of_code_that_become_links(self):
        site = self.written()
        self.assertEqual(site.words["stages/index"], {"./ladder diff 10 11": "diff/10-11.html",
                                                      "tests/a_test.py": "source/tests/a_test.py.html"})
        self.assertEqual(site.words["stages/10"], {"attention.cu": "source/stages/10_kernel/attention.cu.html"})
        self.assertNotIn("labs/00", site.words, "a lab's attention.cpp is the student's, not the solution")


class PageTest(Repository):
    def test_the_facts_of_a_stage_follow_its_title(self):
        self.written()
        title, _, facts = self.page("stages/10").partition("\n\n{.facts}\n")
        self.assertEqual(title, "# 10 kernel: on a GPU")
        facts = dict(re.findall(r"^- \*\*(.+?):\*\* (.*)$", facts, re.M))
        self.assertEqual(facts["Track"], "forward on a GPU")
        self.assertEqual(facts["Takes"], "fp32; d = 32, 64; forward")
        self.assertEqual(facts["Measured against"], "[00 plain](/stages/00.md)")
        self.assertEqual(facts["Then"], "[11 next](/stages/11.md)")
        self.assertEqual(facts["Counts"], "`./ladder ledger 10`")
        self.assertEqual([*re.findall(r"\[(.+?)\]", facts["Source"])], ["attention.cu", "claim.cpp"])
        self.assertNotIn("Lab", facts, "it has none")
        self.assertNotIn("Diff", facts, "the stage before is of another track")
        self.assertIn("- **Diff:** [what changes from 10 to 11](site:diff/10-11.html)\n", self.page("stages/11"))
        self.assertIn("- **Counts:** `./ladder ledger 10 11`\n", self.page("stages/11"))
        self.assertEqual(facts["At work"], "[tile by tile](site:watch/10.html), as `./ladder watch 10` plays it")
        self.assertIn('<iframe class="movie" src="../watch/10.html?embed" loading="lazy"', self.page("stages/10"))
        self.assertNotIn("iframe", self.page("stages/00"), "it has no kernels")
        first = dict(re.findall(r"^- \*\*(.+?):\*\* (.*)$", self.page("stages/00"), re.M))
        self.assertEqual(first["Takes"], "fp32; d up to 256; forward and backward")
        self.assertEqual(first["Then"], "[10 kernel](/stages/10.md)")
        self.assertEqual(first["Lab"], "[write it yourself](/labs/00.md)")
        self.assertFalse({"Measured against", "Diff", "Counts"} & {*first})

    def test_a_lab_is_its_handout_without_the_words_of_the_grader(self):
        self.written()
        self.assertIn("./ladder lab new 00 my_lab", self.page("labs/00"))
        self.assertNotIn("too many", self.page("labs/00"))

    def test_a_notebook_is_shown_with_its_stored_outputs(self):
        self.written()
        page = self.page("notebooks/1_one")
        self.assertIn("```python\nprint(1)\n```\n\n{.output}\n```text\n1\n```", page)
        self.assertIn("[stage 10](/stages/10.md)", page)
        self.assertIn("<details><summary>Code</summary>\n\n```python\ndraw()\n```\n\n</details>\n", page)
        self.assertRegex(page, r"!\[[^]]*Part[^]]*\]\(/pictures/notebooks/1_one/1-1.png\)")
        self.assertTrue((self.root / "build/source/pictures/notebooks/1_one/1-1.png").exists())

    def test_the_navigation_has_every_page_once(self):
        self.put("docs/unforeseen.md", "# Unforeseen\n")
        site = self.written()
        listed = [page for text in ("index", "stages/index", "labs", "notebooks/index")
                  for page in re.findall(r"^(?:.*<)?/([\w/]+)>?$", self.page(text), re.M)]
        self.assertEqual(sorted(listed), sorted({*site.pages.values()} - {"index"}))
        self.assertEqual(re.findall(":caption: (.*)", self.page("index")), ["Start", "Theory", "Practice", "Reference"])

    def test_a_text_without_a_title_and_a_marker_without_a_place_are_errors(self):
        self.put("docs/labs.md", "No title.\n")
        with self.assertRaisesRegex(SiteError, "docs/labs.md does not begin with a title"):
            self.written()
        self.put("docs/labs.md", "# Labs\n")
        self.put("docs/index.md", "# Front\n")
        with self.assertRaisesRegex(SiteError, "No page of the guide has a line <!-- ladder -->"):
            self.written()


class FormulaTest(unittest.TestCase):
    def test_formulas_of_the_texts(self):
        """Every formula of the guide, so that a mistake shows in seconds."""
        texts = [*SOURCE.glob("docs/**/*.md"), *SOURCE.glob("stages/**/*.md")]
        found = 0
        for path in texts:
            text = re.sub(r"(?ms)^```.*?^```|`[^`\n]*`|^    .*?$", "", path.read_text())
            for block, inline in re.findall(r"\$\$(.+?)\$\$|\$(?![\s\d])([^$\n]+(?:\n[^$\n]+)?)(?<!\s)\$", text, re.S):
                found += 1
                with self.subTest(path=path.name, formula=block or inline):
                    to_mathml(block or inline, display=bool(block))
        self.assertGreater(found, 20)

    def test_what_browsers_draw(self):
        aligned = to_mathml(r"\begin{aligned} a &= b \\ c &= d \end{aligned}", display=True)
        self.assertEqual((aligned.count("<mtr>"), aligned.count("text-align: right")), (2, 2))
        self.assertIn('display="block"', aligned)
        self.assertIn(">log</mo>", to_mathml(r"m + \log l"))
        self.assertIn('<mo lspace="0" rspace="0">,</mo>', to_mathml("1{,}000"))
        self.assertIn('<mo lspace="0" rspace="0">/</mo>', to_mathml("N / d"))
        self.assertIn("<mo>\u00b1</mo>", to_mathml(r"a \pm b"))
        self.assertIn('stretchy="false">\u2308</mo>', to_mathml(r"\lceil x \rceil"))
        self.assertIn('width="-0.167em"', to_mathml(r"\Theta\!(x)"))
        self.assertIn('accent="true"', to_mathml(r"\tilde P"))
        self.assertIn('alttext="e^x"', to_mathml(" e^x "))
        spaces = [re.search(r'rspace="(.*?)"', to_mathml(tex))[1] for tex in (r"\max(a)", r"\log l", r"\log_2 e")]
        self.assertEqual(spaces, ["0.000em", "0.167em", "0.167em"])

    def test_what_cannot_be_drawn_is_said(self):
        for tex, reason in ((r"\diag(x)", r"has \\diag, which"), (r"\frac{1", "braces"), ("a}", "braces"),
                            ("a & b", "stray"), (r"a \\ b", "breaks a line"), ("x^2^3", "no formula"),
                            (r"\left( x", "no formula"), ("  ", "nothing in it")):
            with self.assertRaisesRegex(FormulaError, reason, msg=tex):
                to_mathml(tex)


class BuildTest(Repository):
    """The whole way from a repository to a site, but for Doxygen."""

    def setUp(self):
        super().setUp()
        shutil.copytree(SOURCE / "docs/site", self.root / "docs/site", ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("docs/__init__.py", "common/__init__.py", *(
                f"common/course/{name}.py" for name in ("__init__", "diff_model", "ledger", "program", "registry"))):
            self.put(file, (SOURCE / file).read_text())
        self.put("program", f"#!{sys.executable}\nimport sys\nprint({json.dumps(STAGES)!r} if sys.argv[2] == '--json' "
                            f"else {TABLE!r}, end='')\n")
        (self.root / "program").chmod(0o755)
        self.put("common/course/diff.py", textwrap.dedent("""\
            import pathlib, sys
            folder = pathlib.Path(sys.argv[2])
            folder.mkdir()
            for name in ("index", "10-11"):
                (folder / f"{name}.html").write_text("<!doctype html><title>diff</title>")
            """))
        self.put("common/course/watch.py", (self.root / "common/course/diff.py").read_text().replace("10-11", "10"))

    def build(self):
        return subprocess.run(
            [sys.executable, "-B", "-m", "docs.site.build", "--out", self.root / "out/html", "--program",
             self.root / "program", "--xml", self.root / "xml"], capture_output=True, text=True, cwd=self.root)

    def test_a_small_site_and_one_that_cannot_be_made(self):
        result = self.build()
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        self.assertIn("Left out: the API reference (install doxygen", result.stdout)
        index = self.root / "out/html/index.html"
        self.assertIn(f"The guide begins at {index}", result.stdout)
        for page, text in (("theory/proof", "<math "), ("api", "made without Doxygen"),
                           ("theory/proof", 'href="../source/stages/10_kernel/attention.cu.html#L5"'),
                           ("stages/11", 'href="../diff/10-11.html"'), ("stages/index", 'href="../diff/10-11.html"')):
            self.assertTrue(text in (self.root / f"out/html/{page}.html").read_text(), f"{text} in {page}")

        self.put("docs/labs.md", "# Labs\n[a](theory/proof.md#no-such-step), $\\nonsense$\n")
        result = self.build()
        self.assertEqual(result.returncode, 1)
        self.assertIn("no-such-step", result.stderr)
        self.assertIn(r"\nonsense", result.stderr)
        self.assertIn("labs.md:2", result.stderr)
        self.put("docs/labs.md", "# Labs\n")
        for verb in ("watch", "diff"):
            self.put(f"common/course/{verb}.py", f"import sys\nsys.exit('no {verb} today')")
            result = self.build()
            self.assertEqual(result.returncode, 1)
            self.assertIn(f"no {verb} today", result.stderr)
        self.assertTrue(index.exists(), "the site of before stays")
        self.assertEqual([path.name for path in (self.root / "out").iterdir()], ["html"], "nothing half made stays")


# --- A site that was made -------------------------------------------------------------------------------------


VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


class Page(HTMLParser):
    """What a page links to, loads and holds; `mistakes` is what is wrong with it by itself."""

    def __init__(self, path):
        super().__init__()
        self.path, self.mistakes, self.open = path, [], []
        self.links, self.loads, self.ids, self.headings = [], [], set(), []
        self.language = self.title = ""
        self.feed(path.read_text())
        self.close()
        if self.open:
            self.mistakes.append(f"<{self.open[-1]}> is not closed")
        if not self.language or not self.title.strip():
            self.mistakes.append("it has no language or no title")
        if not self.headings or self.headings.count(1) != 1 or self.headings[0] != 1:
            self.mistakes.append(f"it has not one first heading: {self.headings}")
        for one, next_one in zip(self.headings, self.headings[1:]):
            if next_one > one + 1:
                self.mistakes.append(f"a heading of level {next_one} follows one of level {one}")

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag not in VOID:
            self.open.append(tag)
        for name in ("id", "name") if tag == "a" else ("id",):
            if given.get(name):
                if name == "id" and given[name] in self.ids:
                    self.mistakes.append(f"two elements have the id {given[name]}")
                self.ids.add(given[name])
        if tag == "html":
            self.language = given.get("lang", "")
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag == "img" and not (given.get("alt") or "").strip():
            self.mistakes.append(f"the picture {given.get('src')} has no words")
        if tag == "link" and given.get("rel") in ("index", "search", "next", "prev", "canonical"):
            self.links.append(given["href"])
        elif tag not in ("a", "form"):
            places = ("src", "href", "data", "poster", "srcset", "xlink:href")
            self.loads += [given[place] for place in places if given.get(place)]
        self.loads += re.findall(r"url\(['\"]?(.*?)['\"]?\)", given.get("style") or "")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            self.mistakes.append(f"</{tag}> at line {self.getpos()[0]} closes <{self.open[-1] if self.open else ''}>")
            if tag in self.open:
                while self.open.pop() != tag:
                    pass

    def handle_data(self, data):
        if self.open and self.open[-1] == "title" and "svg" not in self.open:
            self.title += data


@unittest.skipIf(SITE is None, "no site is named")
class SiteTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pages = {path: Page(path) for path in sorted(SITE.rglob("*.html")) if "_static" not in path.parts}

    def place(self, page, link):
        """The file and the anchor that a link leads to; None for another site."""
        url = urllib.parse.urlsplit(link)
        if url.scheme or url.netloc:
            return None
        path = page.parent / urllib.parse.unquote(url.path) if url.path else page
        return Path(os.path.normpath(path)), urllib.parse.unquote(url.fragment)

    def test_every_page_is_well_formed(self):
        self.assertGreater(len(self.pages), 100)
        for path, page in self.pages.items():
            with self.subTest(page=str(path.relative_to(SITE))):
                self.assertEqual(page.mistakes, [])

    def test_every_link_leads_somewhere(self):
        links = 0
        for path, page in self.pages.items():
            for link in page.links:
                with self.subTest(page=str(path.relative_to(SITE)), link=link):
                    place = self.place(path, link)
                    if place is None:
                        self.assertRegex(link, "^https?://", "a link to another site")
                        continue
                    links += 1
                    file, anchor = place
                    self.assertTrue(file.is_relative_to(SITE) and file.is_file(), "there is no such file")
                    if anchor and file in self.pages:
                        self.assertIn(anchor, self.pages[file].ids, "there is no such anchor")
        self.assertGreater(links, 1000)

    def test_nothing_is_loaded_from_elsewhere(self):
        for path, page in self.pages.items():
            for load in page.loads:
                with self.subTest(page=str(path.relative_to(SITE)), load=load[:80]):
                    if load.startswith(("data:", "#")):
                        continue
                    place = self.place(path, load)
                    self.assertIsNotNone(place)
                    self.assertTrue(place[0].is_file(), "there is no such file")
        for style in SITE.rglob("*.css"):
            text = style.read_text()
            self.assertNotIn("@import", text)
            for load in re.findall(r"""url\(\s*("[^"]*"|'[^']*'|[^)]*)\)""", text):
                load = load.strip("\"' ")
                self.assertTrue(load.startswith("data:") or (style.parent / load).is_file(), f"{style}: {load[:80]}")

    def test_all_can_be_reached_from_the_front_page(self):
        seen, new = set(), [SITE / "index.html"]
        while new:
            path = new.pop()
            if path in seen or path not in self.pages:
                continue
            seen.add(path)
            places = [self.place(path, link) for link in self.pages[path].links]
            new += [place[0] for place in places if place is not None]
        missing = {path for path in self.pages if path not in seen}
        self.assertEqual(missing, set())

    def test_what_must_be_there_is_there(self):
        stages = sorted(path.parent.name for path in SOURCE.glob("stages/[0-9][0-9]_*/README.md"))
        wanted = [f"stages/{name[:2]}" for name in stages]
        wanted += [f"labs/{path.parent.name[:2]}" for path in SOURCE.glob("stages/*/lab.md")]
        wanted += [f"notebooks/{path.stem}" for path in SOURCE.glob("notebooks/*.ipynb")]
        wanted += [path.relative_to(SOURCE / "docs").with_suffix("").as_posix() for path in SOURCE.glob("docs/*/*.md")]
        wanted += [path.stem for path in SOURCE.glob("docs/*.md")]
        modules = re.findall(r"<!-- headers of (\w+) -->", (SOURCE / "docs/api.md").read_text())
        hidden = [SOURCE / "common" / name for name in
                  ("simt/device.hpp", "simt/device_host.hpp", "io/terminal.hpp")]  # as docs/CMakeLists.txt says
        wanted += [f"api/{path.relative_to(SOURCE / 'common').with_suffix('')}" for module in modules
                   for path in SOURCE.glob(f"common/{module}/*.hpp") if path not in hidden]
        wanted += ["diff/index", "search"]
        self.assertGreater(len(wanted), 60)
        for page in wanted:
            self.assertIn(SITE / f"{page}.html", self.pages)
        diffs = {link for page in self.pages for link in re.findall(r"\d\d-\d\d(?=\.html)", page.read_text())}
        steps = [name for name in stages if int(name[:2]) < 70]  # the variants are none
        tracks = {name[0] for name in steps if int(name[:2]) not in (50, 51, *range(60, 69))}  # the last ones of tracks 4 and 5
        self.assertEqual(len(diffs), len(steps) - len(tracks), "of all but the first of a track")

    def test_pages_are_small(self):
        for path in self.pages:
            self.assertLess(path.stat().st_size, 300_000 if path.parent.name == "diff" else 1_000_000, path)

    def test_the_site_says_nothing_of_where_it_was_made(self):
        for path in (*self.pages, SITE / "searchindex.js"):
            self.assertFalse(str(SOURCE) in path.read_text(), f"{path} names {SOURCE}")


def browser():
    """Chromium without a window, from files, with nothing to load elsewhere."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--disable-gpu", "--window-size=1280,900", "--disable-background-networking"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium's own does not run as root.
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


NO_BROWSER = "" if shutil.which("chromium") and shutil.which("chromedriver") else \
    "chromium and chromedriver (packages chromium, chromium-driver) are not installed"
# A page of each kind, as a person meets them.
KINDS = ("index", "readme", "stages/index", "stages/13", "stages/29", "labs/13", "theory/online_softmax",
         "theory/io_complexity", "notebooks/2_tiles", "mistakes", "glossary", "lecturer", "vocabulary", "checks",
         "common/simt", "api", "api/attention/stage", "api/simt/memory",
         "source/stages/13_fa2_sequence_parallel/attention.cu", "diff/index", "diff/12-13", "watch/15", "watch/14-15",
         "search")
# Texts whose contrast with what is behind them is below what WCAG asks for (4.5, or 3 where they are large).
LOW_CONTRAST = """
const parse = text => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
const over = (top, below) => top.slice(0, 3).map((v, i) => v * (top[3] ?? 1) + below[i] * (1 - (top[3] ?? 1)));
const ground = element => {
  const layers = [];
  for (let e = element; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor));
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  return layers.reverse().reduce((below, top) => over(top, below), dark ? [18, 18, 18] : [255, 255, 255]);
};
const found = new Set(), walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node; node = walk.nextNode();) {
  const element = node.parentElement, style = getComputedStyle(element), box = element.getBoundingClientRect();
  if (!node.data.trim() || !box.width || style.visibility !== "visible") continue;
  if (element.closest("svg, script, style, noscript")) continue;
  const below = ground(element), one = light(over(parse(style.color), below)), two = light(below);
  const contrast = (Math.max(one, two) + .05) / (Math.min(one, two) + .05);
  const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
  if (contrast < (large ? 3 : 4.5))
    found.add(`${contrast.toFixed(2)} ${element.tagName}.${element.className} "${node.data.trim().slice(0, 30)}"`);
}
return [...found];
"""


@unittest.skipIf(SITE is None or NO_BROWSER, NO_BROWSER or "no site is named")
class BrowserTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.chromium = browser()
        cls.addClassCleanup(cls.chromium.quit)

    def setUp(self):
        self.addCleanup(self.no_complaints)
        self.device(1280)
        self.open("index")
        self.chromium.execute_script("localStorage.clear()")

    def no_complaints(self):
        """Nothing was written to the console, and nothing asked for that is no file of the site."""
        complaints = [entry["message"] for entry in self.chromium.get_log("browser") if entry["level"] != "INFO"]
        self.assertEqual(complaints, [])
        for entry in self.chromium.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                self.assertTrue(url.startswith((SITE.as_uri(), "data:", "blob:", "about:")), url)

    def open(self, page, query=""):
        self.assertTrue((SITE / f"{page}.html").is_file(), f"there is no page {page}")
        self.chromium.get((SITE / f"{page}.html").as_uri() + query)

    def device(self, width, dark=False):
        self.chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500})
        self.chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})

    def at(self):
        return urllib.parse.unquote(urllib.parse.urlsplit(self.chromium.current_url).path).removeprefix(f"{SITE}/")

    def find(self, selector):
        from selenium.webdriver.common.by import By
        return self.chromium.find_elements(By.CSS_SELECTOR, selector)

    def follow(self, text, within="body"):
        """Clicks the first link with that text."""
        links = [link for link in self.find(f"{within} a") if link.text.strip() == text and link.is_displayed()]
        self.assertTrue(links, f"{self.at()} has no link '{text}'")
        self.chromium.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", links[0])
        links[0].click()

    def wait(self, condition, what):
        for _ in range(100):
            if condition():
                return
            time.sleep(.1)
        self.fail(f"{what} did not come within ten seconds")

    def test_one_path_by_clicks(self):
        self.follow("13 fa2_sequence_parallel", "article")
        self.assertEqual(self.at(), "stages/13.html")
        self.assertIn("a block for every tile of Q", self.find("h1")[0].text)
        self.follow("what changes from 12 to 13")
        self.assertEqual(self.at(), "diff/12-13.html")
        self.follow("guide")
        self.assertEqual(self.at(), "index.html")
        self.follow("API reference", ".sidebar-tree")
        self.assertEqual(self.at(), "api.html")
        self.follow("stage.hpp", "article")
        self.assertEqual(self.at(), "api/attention/stage.html")
        self.assertIn("run_forward", self.find("article")[0].text)
        self.follow("Source", "article")
        self.assertEqual(self.at(), "source/common/attention/stage.hpp.html")

    def test_a_stage_at_work(self):
        self.open("stages/15")
        self.assertTrue(self.find("iframe.movie")[0].get_attribute("src").endswith("/watch/15.html?embed"))
        self.follow("tile by tile")
        self.assertEqual(self.at(), "watch/15.html")
        self.wait(lambda: self.chromium.execute_script("return window.player !== undefined"), "the player")
        self.find("button[title='play (space)']")[0].click()
        self.wait(lambda: self.chromium.execute_script("return player.time > 0 && player.frames > 10"), "frames")
        self.find("button[title='pause (space)']")[0].click()
        time = self.chromium.execute_script("return player.time")
        self.find("button[title^='step forward']")[0].click()
        self.wait(lambda: self.chromium.execute_script("return player.time") > time, "the next tile")

    def test_search_from_files(self):
        box = self.find("input.sidebar-search")[0]
        box.send_keys("logsumexp\n")
        self.wait(lambda: self.find("#search-results ul.search li a"), "results")
        self.wait(lambda: re.search(r"found \d+ pages", self.find("#search-results")[0].text), "the number of results")
        first = self.find("#search-results ul.search li a")[0]
        first.click()
        self.assertIn("logsumexp", self.chromium.page_source.lower())
        self.open("search", "?q=nosuchwordanywhere")
        self.wait(lambda: "did not match any documents" in self.find("#search-results")[0].text, "word of no results")

    def test_dark_mode(self):
        ground = "return getComputedStyle(document.body).backgroundColor"
        toggle = [button for button in self.find("button.theme-toggle") if button.is_displayed()][0]
        grounds = {}
        for _ in range(3):
            toggle.click()
            grounds[self.chromium.execute_script("return document.body.dataset.theme")] = \
                self.chromium.execute_script(ground)
        self.assertEqual({*grounds}, {"auto", "light", "dark"})
        self.assertEqual(grounds["auto"], grounds["light"])
        self.assertNotEqual(grounds["dark"], grounds["light"])
        while self.chromium.execute_script("return document.body.dataset.theme") != "dark":
            toggle.click()
        # About one load in a hundred on a busy machine, Chromium shows a file an empty localStorage, until it is loaded
        # again: measured, whatever the page does. What is stored is not lost, so the page is opened again.
        self.wait(lambda: self.open("diff/12-13") or
                  self.chromium.execute_script("return document.documentElement.dataset.theme") == "dark",
                  "the chosen theme, in the diffs,")

    def test_a_phone_never_scrolls_sideways(self):
        self.device(390)
        pages = {*KINDS, *(path.relative_to(SITE).with_suffix("").as_posix() for folder in
                           ("stages", "labs", "theory", "notebooks", "diff", "watch") for path in SITE.glob(f"{folder}/*.html"))}
        for page in sorted(pages):
            with self.subTest(page=page):
                self.open(page)
                # The theme cuts off what is wider than the page, and scrolls it inside: that is no better.
                widths = self.chromium.execute_script(
                    "return [document.documentElement, document.body, ...document.querySelectorAll('.content, main')]"
                    ".map(element => element.scrollWidth)")
                self.assertLessEqual(max(widths), 390)

    def test_the_navigation_of_a_phone(self):
        self.device(390)
        self.open("stages/13")
        link = [a for a in self.find(".sidebar-tree a") if "14 fa2" in a.get_attribute("textContent")][0]
        where = "const box = arguments[0].getBoundingClientRect(); return box.left >= 0 && box.right <= innerWidth"
        self.assertFalse(self.chromium.execute_script(where, link))
        self.find("label.nav-overlay-icon")[0].click()
        self.wait(lambda: self.chromium.execute_script(where, link), "the navigation")
        link.click()
        self.assertEqual(self.at(), "stages/14.html")

    def test_formulas_are_drawn(self):
        self.open("theory/online_softmax")
        sizes = self.chromium.execute_script("return [...document.querySelectorAll('math')].map(m => {"
                                             "const b = m.getBoundingClientRect(); return [b.width, b.height]})")
        self.assertGreater(len(sizes), 10)
        self.assertTrue(all(width > 2 and height > 5 for width, height in sizes), sizes)

    def test_words_stand_out_from_what_is_behind_them(self):
        for dark in (False, True):
            self.device(1280, dark)
            for page in KINDS:
                with self.subTest(page=page, dark=dark):
                    self.open(page)
                    self.assertEqual(self.chromium.execute_script(LOW_CONTRAST), [])

    def test_a_diff_is_usable_within_a_second(self):
        """The best of three, because others may use this machine too."""
        for path in sorted(SITE.glob("diff/*-*.html")):
            with self.subTest(page=path.name):
                times = []
                for _ in range(3):
                    self.chromium.get(path.as_uri())
                    times.append(self.chromium.execute_async_script(
                        "const done = arguments[0]; requestAnimationFrame(() => setTimeout(() => "
                        "done(performance.getEntriesByType('navigation')[0].loadEventEnd)))"))
                self.assertLess(min(times), 1000)
                self.assertGreater(min(times), 0)


if __name__ == "__main__":
    names = [SiteTest, BrowserTest] if SITE else [LinkTest, PageTest, FormulaTest, BuildTest]
    for unwanted in {LinkTest, PageTest, FormulaTest, BuildTest, SiteTest, BrowserTest} - {*names}:
        globals().pop(unwanted.__name__)
    del names, unwanted
    ended = unittest.main(exit=False).result
    if ended.wasSuccessful() and SITE and NO_BROWSER:
        print(f"skipped: {NO_BROWSER}; all else of the site is right")
        sys.exit(77)
    sys.exit(not ended.wasSuccessful() or not ended.testsRun)
