"""Reads measured collectives: logs of nccl-tests, and tables of the same figures as CSV.

Read `reader` first. `logs` and `tables` parse the two formats into the `records`, `consistency` checks each row against
itself, `names` knows the names of collectives and of files, and `aggregation` makes one monotone table from rows of
many files.
"""
