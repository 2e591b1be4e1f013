"""Stages with another tile or a patch: what they are, and the program that checks and times them."""
