"""Programs that measure on a GPU or a CPU and write results."""
