"""Tests. Those in Python run from the top of the repository: python3 -m tests.imports_test"""
