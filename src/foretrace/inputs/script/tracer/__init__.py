"""Runs a PyTorch script on one CPU as if on a GPU of a large job, and records what it issues. Needs PyTorch.

Read `session.py` first: what is installed while a script runs. `dispatch.py` runs every op on sizes alone and records
it in the log of `events.py`; `storages.py` knows devices, memory and values, `places.py` where in a step the script is.
`run.py` traces a script in processes of its own. `replacements/` stands in for parts of PyTorch.
"""
