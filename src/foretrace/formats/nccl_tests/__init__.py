"""Measured collectives: logs of nccl-tests, and tables of the same figures as CSV."""

from foretrace.formats.nccl_tests.combine import falling_removed, measurements_of
from foretrace.formats.nccl_tests.read import read_measurements
from foretrace.formats.nccl_tests.records import Measurement, Measurements, Table

__all__ = ["Measurement", "Measurements", "Table", "falling_removed", "measurements_of", "read_measurements"]
