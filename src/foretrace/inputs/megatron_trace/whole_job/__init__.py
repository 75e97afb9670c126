"""The step of a whole job, built from what single ranks took for one microbatch.

Read `whole_job.py` first: it writes the description of the step. `work.py` reads what each kind of rank does, with
times from `pools.py` and the constants of `corrections.py`. `exchanges.py` finds who sends how much in all-to-alls,
and `resize.py` changes the mesh, the routing or the layers of stages.
"""
