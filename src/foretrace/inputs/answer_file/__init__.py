"""Saved answers as inputs: what was simulated before, with its timeline (`input.py`)."""
