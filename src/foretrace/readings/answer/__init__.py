"""Holds the result of a simulation, with its JSON and its file.

Read `answer.py` first. `answer_record.py` is the shape of its JSON and `answer_file.py` the file it is saved in.
`recorded.py` makes an answer of a measured timeline. `model_figures.py` and `memory_fit.py` add what only a model with
a plan has: FLOPs, utilisation and memory.
"""
