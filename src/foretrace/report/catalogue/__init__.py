"""Writes what can be named: `lists` is `foretrace list`, `show` finds what `foretrace show` is asked for.

Read `show` first. `hardware` and `models` hold the screens and the JSON of presets: GPUs, NICs, nodes and clusters, and
architectures.
"""
