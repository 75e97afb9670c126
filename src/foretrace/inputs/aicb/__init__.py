"""SimAI/AICB workload files.

Read `input.py` first, then `program.py`: how a workload becomes the description of a step. `microbatches.py` finds
what each row is for, `plan.py` the mesh and the schedule, `calls.py` the collectives, `chunks.py` and `step_end.py`
the parts of the step. `inventory.py` and `oddities.py` report what a file holds. `format` reads and writes the file
itself.
"""
