"""Traces of the PyTorch profiler and of Nsight Systems as an input."""
