"""Rank traces of Megatron as an input."""
