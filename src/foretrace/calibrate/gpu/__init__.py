"""Measuring what kernels take on the GPU of this machine. Needs PyTorch with CUDA and nothing beyond, so that it
runs on a bare node: `python -m foretrace.calibrate.gpu --out FILE`."""
