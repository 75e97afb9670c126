"""Tables of PyTorch's profiler (`key_averages().table()`) as inputs.

Read `input.py` first, then `profile.py`: a table, understood. `rows.py` tells what each row is, `labels.py` how labels
nest, `parts.py` divides device time, `host.py` and `communication.py` find the rest. `program.py` and `step.py`
describe the step, with `calls.py` for its collectives and `sizes.py` for their bytes. `format` reads the text of
tables.
"""
