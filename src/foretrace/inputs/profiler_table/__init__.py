"""Tables of the PyTorch profiler as an input."""
