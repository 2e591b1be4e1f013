"""Makes the guide, a static site: stages, diffs, theory, labs, notebooks, the API reference, search. A browser reads it
from the files, without a server or a network. Usually called as ./ladder docs, which makes what it needs.

  python3 -m docs.site.build --out DIR --program build/release/flashladder --xml build/release/docs/xml
"""
from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from common.course.program import run
from common.course.registry import ROOT
from docs.site.api import declarations_of, pages_of, write_api, write_graph
from docs.site.pages import Site, SiteError

BUILD = ROOT / "build/release"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=BUILD / "docs/html", metavar="DIR",
                        help="where the site goes, in place of what is there (default: %(default)s)")
    parser.add_argument("--program", type=Path, default=BUILD / "flashladder", metavar="FILE",
                        help="the built program, which knows the stages (default: %(default)s)")
    parser.add_argument("--xml", type=Path, default=BUILD / "docs/xml", metavar="DIR",
                        help="what Doxygen has made of the headers (default: %(default)s); without it, the site has no "
                             "API reference")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    out = options.out.resolve()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # Beside its place, so that it can be moved there in one step, complete or not at all.
        work = Path(tempfile.mkdtemp(prefix=".docs-", dir=out.parent))
        try:
            build(options, work)
            replace(out, work / "html", work / "old")
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except SiteError as error:
        return failed(str(error))
    except (OSError, subprocess.CalledProcessError) as error:
        return failed(f"The guide could not be made: {error}.")
    except ModuleNotFoundError as missing:
        return failed(f"The guide needs the Python module {missing.name}: ./ladder docs installs it.")
    print(f"The guide begins at {out}/index.html")
    return 0


def failed(sentence: str) -> int:
    print(f"ladder: {sentence}", file=sys.stderr)
    return 1


def build(options: argparse.Namespace, work: Path) -> None:
    stages = json.loads(ask(options.program, "--json"))
    # Beside Sphinx, because they run the stages, which takes a while.
    with beside(options, work, "diff") as diffs, beside(options, work, "watch") as movies:
        try:
            site = written_site(options, work / "source", stages)
            run_sphinx(site, work, options.xml)
            for name, made in (("diff", diffs), ("watch", movies)):
                said, _ = made.communicate()
                if made.returncode:
                    raise SiteError(f"The pages of ./ladder {name} could not be made: {said.strip()}")
                shutil.copytree(work / name, work / "html" / name)
        finally:
            diffs.kill()
            movies.kill()
    for file, shown in site.listings.items():
        if shown.startswith("files/"):
            (work / "html" / shown).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, work / "html" / shown)


def beside(options: argparse.Namespace, work: Path, verb: str) -> subprocess.Popen:
    """Makes the pages of ./ladder diff or ./ladder watch in a folder of that name."""
    return subprocess.Popen([sys.executable, "-B", "-m", f"common.course.{verb}", "--site", work / verb], text=True, cwd=ROOT,
                            env={**os.environ, "FLASHLADDER_PROGRAM": str(options.program.resolve())},
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def ask(program: Path, *options: str) -> str:
    """What ./ladder list says."""
    try:
        return subprocess.run([program.resolve(), "list", *options], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise SiteError(f"{program} does not list the stages ({error}): ./ladder docs builds it anew.") from error


def written_site(options: argparse.Namespace, source: Path, stages: list[dict]) -> Site:
    """The pages as Markdown."""
    has_api = (options.xml / "index.xml").exists()
    if not has_api:
        print("Left out: the API reference (install doxygen, then call ./ladder docs again).")
    declared = declarations_of(options.xml) if has_api else {}
    site = Site(ROOT, source, stages, pages_of(declared))
    site.made["<!-- ladder -->"] = site.rewrite("docs/index.md", ask(options.program, "--markdown", "../stages/"))
    if has_api:
        write_api(site, declared)
        write_graph(site)
    else:
        site.made["<!-- graph of modules -->"] = "The headers are not here: this guide was made without Doxygen."
    site.write_texts()
    return site


def run_sphinx(site: Site, work: Path, xml: Path) -> None:
    from sphinx.application import Sphinx
    from sphinx.errors import SphinxError

    version = re.search(r"project\(flashladder VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())
    settings = {"version": version[1] if version else "", "site_words": site.words,
                "breathe_projects": {"flashladder": str(xml.resolve())}}
    warnings = io.StringIO()
    try:
        Sphinx(site.source, Path(__file__).parent, work / "html", work / "doctrees", "html", settings, status=None,
               warning=warnings, parallel=os.cpu_count() or 1).build()
    except SphinxError as error:
        warnings.write(str(error))
    if warnings.getvalue():  # without colours, and with pages named as the site has them
        said = re.sub(r"\x1b\[[\d;]*m", "", warnings.getvalue()).replace(f"{site.source}/", "").strip()
        raise SiteError(f"The guide has mistakes, so it was not made:\n{said}")


def replace(place: Path, new: Path, old: Path) -> None:
    if place.exists():
        place.rename(old)
    new.rename(place)


if __name__ == "__main__":
    run(main)
