"""A model with a plan."""
