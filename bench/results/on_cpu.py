"""What bench.measure.compare_cpu measured, a file for each machine."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "cpu"
UNDISTURBED = 0.97  # of the time of its cores: what the process must get for a measurement to be left as it is
