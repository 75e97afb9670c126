"""Measures what kernels take on the GPU of this machine.

It needs PyTorch with CUDA and nothing else, so that it runs on a bare node: `python -m foretrace.calibrate.gpu --out
FILE`. Read `measure.py` first, then `timing.py`. `attention.py`, `fused.py`, `gemms.py` and `streams.py` list the
kernels as `case.py` describes them. `host.py` measures launches; `machine.py` and `monitor.py` describe the GPU.
"""
