"""Texts; in Python it is the package site alone, which makes the guide of them."""
