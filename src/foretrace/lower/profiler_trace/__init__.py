"""Profiler traces to a program: what the host and the device did, and what waited for what."""
