"""Reads measured collectives: logs of nccl-tests, and tables of the same figures as CSV.

Read `reader` first. `logs` and `tables` parse the two formats into the `records`, `names` knows the names of
collectives and of files, and `aggregation` makes one monotone table from rows of many files.
"""

from foretrace.cost.network.nccl_tests.aggregation import falling_removed, measurements_of
from foretrace.cost.network.nccl_tests.reader import read_measurements
from foretrace.cost.network.nccl_tests.records import Measurement, Measurements, MeasurementTable

__all__ = ["Measurement", "MeasurementTable", "Measurements", "falling_removed", "measurements_of", "read_measurements"]
