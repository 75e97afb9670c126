"""Brings the profiler traces of a job's ranks together: groups, meshes and communications.

Read `ranks.py` first: it matches the communications of all traces. `communication.py` reads what one kernel
communicates. `axes.py` and `layout.py` find the axis of each process group and the recorded mesh. `resize.py` builds
the job for another mesh, and `gradients.py` adds the gradient reductions of a job that was recorded on one GPU.
`user_groups.py` checks what the user states with `--set`.
"""
