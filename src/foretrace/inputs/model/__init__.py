"""A model with a plan as an input.

Read `input.py` first. `options.py` makes the fields of a plan from the texts of options, and `inventory.py` reports
what the model and the plan are.
"""
