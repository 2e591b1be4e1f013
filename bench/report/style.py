"""How all charts look, and the Matplotlib that draws them."""

import sys

try:
    import matplotlib

    matplotlib.use("Agg")  # there may be no screen
    import matplotlib.pyplot as plt
    import matplotlib.ticker
except ImportError:
    sys.exit("report: this Python has no Matplotlib: ./ladder setup makes one that has, .venv/bin/python")

INK, MUTED, FRAME, BAR, COUNT, WARNING = "#1f2328", "#59636e", "#d1d9e0", "#0072b2", "#e69f00", "#b3261e"
# Told apart by the colour-blind too (the palette of Okabe and Ito), and by marker and dashes without any colour.
LINES = [("#0072b2", "o", "-"), ("#e69f00", "s", "-"), ("#009e73", "^", "-"), ("#cc79a7", "D", "--"),
         ("#d55e00", "v", "--"), ("#56b4e9", "P", "--"), ("#000000", "X", ":"), ("#7f7f7f", "<", ":")]
plt.rcParams.update({
    "font.size": 11, "axes.edgecolor": FRAME, "axes.labelcolor": MUTED, "text.color": INK, "xtick.color": MUTED,
    "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "flashladder",
})
