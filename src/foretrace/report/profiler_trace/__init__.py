"""Writes what profiler traces answer: `screens` for the terminal, `views_json` as JSON, `plot` as SVG.

Every question is a view of `readings.profiler_views`, named by `foretrace explain --view`. `kernel_names`
shortens names.
"""
