"""States what a plan must satisfy, once for one plan and for columns of plans.

Read `sizes.py` first: the sizes that follow from a model and a plan, as numbers or as arrays. The other modules hold
the rules by subject; `workload/constraints.py` lists them all.
"""
