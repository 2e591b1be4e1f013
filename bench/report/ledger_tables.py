"""Writes the tables of counts into the READMEs of the stages that have a ledger: this stage beside the one before.

    python3 -m bench.report.ledger_tables                 # rewrites what stands between the markers
    python3 -m bench.report.ledger_tables --check         # changes nothing; exits 1 and names each README that is stale

A table has the counters of either stage's claim and all others that differ, but not those that are 0 in both. What is
read and written is added up over all buffers and over all shared arrays; a shared array has lines of its own only where
a claim names it.
"""

import argparse
import sys

from bench.report.markers import NoMarkers, with_block
from common.course import registry
from common.course.ledger import count, counters, forms_of, ledgers, options_of, ratio
from common.course.registry import ROOT, Failure


def table(stage, before):
    """The Markdown of a stage; `before` is the number of the one before it, None where that has no ledger."""
    numbers = [stage.number] if before is None else [before, stage.number]
    stages, command = ledgers(registry.program(), numbers, options_of(stage, stage.forward))
    all_forms = [forms_of(stage) for stage in stages]
    claimed, others = counters(stages, all_forms)
    heads = [*map(registry.digits, numbers)] + ([] if before is None else ["ratio"])
    lines = [f"`{command}`:", "", f"| counter | {' | '.join(heads)} | closed form of {stage.digits} |",
             "|---" + "|--:" * len(heads) + "|---|"]
    for counter in claimed + others:
        values = [count(one, forms, counter) for one, forms in zip(stages, all_forms)]
        if not any(values) or (counter in others and len(values) == 2 and values[0] == values[1]):
            continue
        cells = [f"{value:,}" for value in values] + ([] if before is None else [ratio(*values)])
        form = all_forms[-1].get(counter, {"text": ""})["text"]
        lines.append(f"| {counter} | {' | '.join(cells)} | {form} |")
    return "\n".join(lines)


def counted():
    """Each stage with a claim on the ledger, and the number of the one before it, None where that has none."""
    found = {stage.number: stage for stage in registry.all_stages() if stage.kernels}
    for stage in found.values():
        yield stage, stage.before if stage.before in found else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a README is stale")
    chosen = parser.parse_args()
    stale = []
    for stage, before in counted():
        old, new = with_block(stage.readme, "ledger", table(stage, before))
        if old == new:
            continue
        stale.append(str(stage.readme.relative_to(ROOT)))
        if not chosen.check:
            stage.readme.write_text(new)
    if chosen.check and stale:
        raise Failure(f"stale: {', '.join(stale)}; python3 -m bench.report.ledger_tables writes them anew")
    for name in stale:
        print(f"{name} updated", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except (Failure, NoMarkers) as failure:
        sys.exit(f"ledger_tables: {failure}")
