"""Runs training scripts with simulated GPUs, and writes what their ranks issue as a program.

Read `recording.py` first: what the tracer records. `program.py` writes recordings as a program, rank by rank in
`write_role.py`, with the kernels of `kernels.py` and `fuse.py`, the host's time of `host_costs.py` and the memory of
`memory.py`. There are 16 modules because each answers one question about a recording.
"""
