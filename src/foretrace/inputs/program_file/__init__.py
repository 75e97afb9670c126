"""Program files of Foretrace, and programs built in Python, as inputs.

Read `input.py` first. `inventory.py` counts what is in a program without running it.
"""
