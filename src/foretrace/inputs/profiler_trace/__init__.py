"""Profiler traces as an input: Kineto's and Nsight Systems' timelines, with PyTorch's execution traces.

Read `input.py` first, then `program.py`, which turns the traces of a job into a program. `format/` reads files into
records, `rank/` finds the steady step of one trace, and `job/` brings the traces of several ranks together.
`write_step.py` writes the ops of a rank, with the host as `host_modes.py` and `profiling_cost.py` have it.
`recorded.py` is the measured timeline. `execution_join.py` adds shapes from execution traces. `inventory.py` and
`rank_inventory.py` list what is in the files, for `foretrace inspect`.
"""
