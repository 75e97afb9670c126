"""Predicts measured training runs and compares the predictions with the measurements.

Read `validate.py` first. `training_runs.py` reads the tables. `rows.py` turns a row into a job, with the model of
`models.py`, the plan of `plans.py` and the cluster of `machines.py`. `results.py` holds the errors, `plan_order.py`
asks whether plans come out in their order, and `calibrated.py` compares predictions with and without a calibration.
"""
