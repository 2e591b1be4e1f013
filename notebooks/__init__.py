"""Notebooks, what executes them (run) and what they share (helpers)."""
