"""How results are written: one row a line, so that a change of a result is a readable diff.

    python3 -m bench.results.rows FILE...     # writes files of results anew in that form; no value changes

Of a file that another program has written, such as climb.json of ./ladder climb, before it is committed.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def rows_text(data: dict[str, Any]) -> str:
    """The JSON of a file of results: a line for each row of a list, and for each entry of what holds more than numbers."""
    return "{\n" + ",\n".join(f" {json.dumps(key)}: {part(value)}" for key, value in data.items()) + "\n}\n"


def part(value: Any) -> str:
    if isinstance(value, list) and any(isinstance(one, (dict, list)) for one in value):
        return "[\n" + ",\n".join(f"  {json.dumps(one)}" for one in value) + "\n ]"
    if isinstance(value, dict) and any(isinstance(one, (dict, list)) for one in value.values()):
        return "{\n" + ",\n".join(f"  {json.dumps(str(key))}: {json.dumps(one)}" for key, one in value.items()) + "\n }"
    return json.dumps(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    for path in parser.parse_args().files:
        try:
            data = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            sys.exit(f"rows: {path} cannot be read as JSON ({error}): give a file of results")
        if not isinstance(data, dict):
            sys.exit(f"rows: {path} is no file of results, which begins with {{: give one of bench/results")
        path.write_text(rows_text(data))


if __name__ == "__main__":
    main()
