"""Stands in for the parts of PyTorch that need a GPU, real data or other ranks. Most modules have an `install`.

`cuda.py` answers for devices and streams, `tensors.py` and `values.py` for tensors. `groups.py`, `process_group.py`
and `functional.py` record collectives. `composites.py` and `autocast.py` choose kernels and types as a GPU does.
"""
