"""Foretrace programs in files as an input."""
