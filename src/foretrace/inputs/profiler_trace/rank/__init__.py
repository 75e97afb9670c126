"""Reads the steady training step of one rank off its profiler trace.

Read `rank_step.py` first: it puts together all that the other modules find. `links.py` joins calls, kernels and
annotations. `steps.py` finds the training steps, `trim.py` their true ends, and `steady_steps.py` those that do the
same. `streams.py`, `device.py` and `concurrency.py` describe work on the GPU; `host.py`, `waits.py` and `calls.py`
describe host threads. `recorded_time.py` measures steps, and `phases.py` tells forward, backward and optimizer apart.
"""
