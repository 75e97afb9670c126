"""Simulates a job many times to find what suits it.

Read `sweep.py`: a job over a range of one quantity, a simulation for each value.
"""
