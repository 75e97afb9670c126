"""Measured collectives: logs of nccl-tests, and tables of the same figures as CSV."""

from foretrace.cost.network.nccl_tests.aggregation import falling_removed, measurements_of
from foretrace.cost.network.nccl_tests.reader import read_measurements
from foretrace.cost.network.nccl_tests.records import Measurement, Measurements, MeasurementTable

__all__ = ["Measurement", "MeasurementTable", "Measurements", "falling_removed", "measurements_of", "read_measurements"]
