"""A training step as a program: ops on lanes with dependencies and rendezvous, kept as columns.

Read `program.py` first: what a program holds, with the words of `columns.py`, the kernels of `kernels.py` and the
all-to-alls of `dispatch.py`. `build.py`, `block.py` and `role.py` write one, `check.py` and `rendezvous.py` refuse one
that cannot run. `expand.py` unrolls it into ops, `classes.py` and `fold.py` find ranks that behave identically, and
`graph.py` is what the engine runs; `timeline.py` holds the result. `file.py`, `sections.py` and `as_json.py` store it.

The folder has 17 modules because each is a step on the way from the builder to the timeline.
"""
