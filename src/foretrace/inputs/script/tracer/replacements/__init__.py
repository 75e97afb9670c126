"""Stands in for the parts of PyTorch that need a GPU, real data or other ranks. Each module has an `install`.

`cuda.py` answers for devices and streams, `tensors.py` and `values.py` for tensors, `groups.py` and `functional.py`
for collectives, `composites.py` and `autocast.py` for the choice of kernels and types.
"""
