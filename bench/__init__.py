"""What is measured, and what is shown of it: a room for each job. Run its programs from the top of the repository:

    python3 -m bench.measure.compare --help

    results   what was measured, and how its files are read and written
    variants  stages with another tile or a patch, compiled and timed
    measure   programs that measure on a GPU or a CPU and write results
    training  models that are trained with our attention
    report    programs that make tables and pictures of results

docs/architecture.md says which room may import which; tests/imports_test.py holds them to it.
"""
