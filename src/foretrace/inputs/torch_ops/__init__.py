"""The meaning of PyTorch's ops and GPU kernels, by their names and the shapes of their inputs.

Profiler traces, profiler tables and traced scripts share it. Read `shapes.py` first: the kernels that an op runs, which
`products.py`, `fused_attention.py`, `streams.py`, `multi_tensor.py` and `lists.py` find from the tensors of
`tensors.py`. `launched.py` does so for every device event of a trace. `kinds.py`, `collectives.py` and `ranges.py`
classify names; `parameters.py`, `recorded_gpu.py` and `user_sizes.py` know the traced model, its GPU, and what the user
says with `--set`.
"""
