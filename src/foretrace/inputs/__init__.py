"""Inputs: a job as the user gave it, whatever files it is in.

Read `base.py` first: what every input can be asked. `registry.py` lists the kinds and finds the one that a path is of.
Each folder is one kind of input.
"""
