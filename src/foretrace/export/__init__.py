"""Writes jobs and timelines in the formats of other tools.

Read `generate.py` first: `foretrace generate` as functions. `aicb/` makes SimAI/AICB workloads of a model and a plan,
`megatron_trace.py` makes rank traces of a timeline. `perfetto.py` writes timelines for ui.perfetto.dev and
`protobuf.py` is its encoding. `launch.py` writes the scripts that start a plan in a training framework. A new exporter
is one module or folder here.
"""
