"""Rank traces of Megatron, of a real run or taken ex situ on one GPU.

Read `input.py` first, then `program.py`: how traces become a program. `layout.py` finds the job that they are of,
`calls.py` and `gradients.py` what they communicate, `pieces.py` the computation between. A real run is matched by
`recording.py` on the clocks of `clocks.py`, and becomes a program (`replay.py`) or a timeline (`recorded.py`).
`whole_job` builds a job from what one microbatch takes. `format` reads and writes the files; `inventory.py` counts
them.
"""
