"""Writes what profiler traces answer: for the terminal, as JSON and as SVG.

Read `summary` first, the screen of `foretrace explain TRACE`. `screens` has one for each view, `views_json` the JSON of
all, and `plot` draws them.

Every question is a view of `readings.profiler_views`, named by `foretrace explain --view`. `kernel_names`
shortens names.
"""
