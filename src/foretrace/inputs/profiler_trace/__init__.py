"""Traces of PyTorch's profiler and of Nsight Systems, with PyTorch's execution traces."""
