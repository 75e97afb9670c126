"""Training scripts: what one rank issues when the script runs with simulated GPUs, as a program.

Read `recording.py` first: what the tracer records. `program.py` writes recordings as a program, rank by rank in
`write_role.py`, with the kernels of `kernels.py` and `fuse.py`, the host's time of `host_costs.py` and the memory of
`memory.py`. There are many modules because each answers one question about a recording.
"""
