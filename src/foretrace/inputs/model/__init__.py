"""Models with a plan as an input."""
