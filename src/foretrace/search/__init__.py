"""Simulates a job many times to find what suits it.

Read `sweep.py`: a job over ranges of values, a simulation for each combination. `axes.py` reads the values, and
`scaling.py` says what the batch does when GPUs vary.
"""
