"""Tests of what imports what among the modules in Python of this repository: no circle, and no room that reaches into one
that it may not (docs/architecture.md). It reads the sources and imports none.

Usage: python3 -m tests.imports_test [unittest options]
"""

import ast
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1]
# The rooms, and which others each may import.
MAY = {"bench.results": (),
       "common.course": ("bench.results",),
       "bench.variants": ("bench.results", "common.course"),
       "bench.measure": ("bench.results", "bench.variants", "common.course"),
       "bench.training": ("bench.results", "bench.measure", "common.course"),
       "bench.report": ("bench.results", "common.course"),
       "docs.site": ("common.course",),
       "notebooks": ("common.course",)}


def room_of(module):
    """The room that a module lies in; "" for one of Python or of a library."""
    return next((room for room in MAY if module == room or module.startswith(f"{room}.")), "")


def modules_of(root):
    """Each module of the rooms, by name, with the modules of rooms that it imports, wherever in it."""
    files = {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
             for room in MAY for path in (root / room.replace(".", "/")).rglob("*.py")}
    return {name: sorted({one for node in ast.walk(ast.parse(path.read_text())) for one in imported(node, files)} - {name})
            for name, path in files.items()}


def imported(node, files):
    """What an import statement names, as far as it is of the rooms."""
    if isinstance(node, ast.Import):
        return [one.name for one in node.names if room_of(one.name)]
    if isinstance(node, ast.ImportFrom) and node.module:  # of a module, or a module of a package
        names = [f"{node.module}.{one.name}" for one in node.names]
        return [name if name in files else node.module for name in names if room_of(name)]
    return []


def circle_in(imports):
    """The modules of a circle of imports, the first one again at the end; [] where there is none."""
    done = set()

    def search(name, way):
        if name in way:
            return [*way[way.index(name):], name]
        if name in done:
            return []
        found = next(filter(None, (search(other, [*way, name]) for other in imports.get(name, ()))), [])
        done.add(name)
        return found

    return next(filter(None, (search(name, []) for name in imports)), [])


def forbidden_in(imports):
    """A sentence for each import of a room that the importing room may not know."""
    return [f"{name} imports {other}, and {room_of(name)} may import {', '.join(MAY[room_of(name)]) or 'no other room'}"
            for name, others in imports.items() for other in others
            if room_of(other) not in (room_of(name), *MAY[room_of(name)])]


class ImportsTest(unittest.TestCase):
    def test_there_is_no_circle(self):
        self.assertEqual(circle_in(modules_of(SOURCE)), [], "these modules import each other: move what both need out of them")

    def test_every_room_keeps_to_its_arrows(self):
        self.assertEqual(forbidden_in(modules_of(SOURCE)), [])

    def test_the_arrows_have_no_circle_either(self):
        self.assertEqual(circle_in(MAY), [])

    def test_the_rooms_are_there_and_no_others(self):
        self.assertEqual({path.parent.name for path in SOURCE.glob("bench/*/__init__.py")},
                         {room.removeprefix("bench.") for room in MAY if room.startswith("bench.")})
        imports = modules_of(SOURCE)
        self.assertGreater(len(imports), 40)
        for room in MAY:
            self.assertTrue(any(room_of(name) == room for name in imports), room)

    def test_no_program_changes_where_python_looks_for_modules(self):
        for folder in ("bench", "common/course", "docs/site", "notebooks", "tests"):
            for path in (SOURCE / folder).rglob("*.py"):
                for node in ast.walk(ast.parse(path.read_text())):
                    if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.path":
                        self.fail(f"{path.relative_to(SOURCE)}:{node.lineno} uses sys.path: its programs are run from the "
                                  "top of the repository, python3 -m PACKAGE.MODULE")


class SearchTest(unittest.TestCase):
    """That a circle and a forbidden arrow are found."""

    def imports(self, **sources):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in sources.items():
                path = Path(folder, *name.split("__")).with_suffix(".py")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return modules_of(Path(folder))

    def test_a_circle_also_through_a_function(self):
        found = circle_in(self.imports(bench__report__a="from bench.report import b",
                                       bench__report__b="def f():\n    import bench.report.c",
                                       bench__report__c="from bench.report.a import x"))
        self.assertEqual(found, ["bench.report.a", "bench.report.b", "bench.report.c", "bench.report.a"])
        self.assertEqual(circle_in(self.imports(bench__report__a="from bench.report import b", bench__report__b="")), [])

    def test_a_room_that_reaches_too_far(self):
        for report, training in (("from bench.measure.nsight import TIME", "from bench.report import climb"),
                                 ("import bench.measure.nsight", "def f():\n    import bench.report.climb")):
            found = forbidden_in(self.imports(bench__report__a=report, bench__training__b=training, bench__measure__nsight="",
                                              bench__report__climb="import json"))
            self.assertEqual([sentence.split(",")[0] for sentence in found],
                             ["bench.training.b imports bench.report.climb", "bench.report.a imports bench.measure.nsight"])


if __name__ == "__main__":
    unittest.main()
