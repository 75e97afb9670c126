"""Inputs: a job as the user gave it, whatever files it is in.

Read `base.py` first: what every input can be asked. `registry.py` lists the kinds and finds the one that a path is of,
and `inventory.py` is what `inspect` shows. `option_texts.py` reads options as a command line spells them;
`option_values.py` checks the values of options, wherever they come from. `matching.py` matches the calls of several
ranks and sets their clocks. `memory_snapshot.py` reads a measurement that is shown next to a prediction.

Each folder is one kind of input, except `torch_ops`, which two of them share.
"""
