"""Turns measurements of a user's machine into a calibration of prices.

Read `calibrate.py` first: `make_calibration`. `inputs.py` recognises the files, `recorded.py` reads traces and tables,
and `sustained.py` converts recorded times to the frequencies that prices are kept at. `whole_steps.py` and `fit.py` fit
factors, and `coverage.py` says what a calibration covers. `gpu/` measures the GPU of this machine.
"""
