"""Which of the longest tests have their turn."""

import os


def in_turn(things: list) -> list:
    """Those of the part that FLASHLADDER_TURN says, as 2/3; all where it is not set."""
    turn, of = map(int, os.environ.get("FLASHLADDER_TURN", "1/1").split("/"))
    return things[turn - 1::of]
