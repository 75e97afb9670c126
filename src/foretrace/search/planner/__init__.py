"""Finds the fastest plan of a model on a machine, and proves that no other of a space is predicted to be faster.

Read `search.py` first: it rejects what does not fit, bounds every plan from below, simulates the best, and stops when
the bounds exceed the best. `space.py` lists the plans, as the columns of `plan_table.py`.
"""
