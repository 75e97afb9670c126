"""Finds the memory of many plans as columns, to the byte.

Read `memory_table.py` first. `memory_forms.py` finds the moments of a schedule that can have the peak, and
`memory_stages.py` the sizes of units and stages.
"""
