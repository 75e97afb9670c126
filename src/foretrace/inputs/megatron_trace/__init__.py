"""Rank traces of Megatron, of a real run or taken ex situ on one GPU.

Read `input.py` first, then `program.py`: how traces become a program. `layout.py` finds the job that they are of,
`calls.py` and `gradients.py` what they communicate, `pieces.py` the computation between. `recording.py` matches the
calls of a real run and sets its clocks, `replay.py` writes it as a program, and `recorded_timeline` of `program.py` as
a timeline. `whole_job` builds a job from what one microbatch takes. `options.py` holds what traces leave open, `format`
reads and writes the files, and `inventory.py` counts them.
"""
