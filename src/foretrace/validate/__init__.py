"""Predictions beside measured runs: how far off, where, and why."""
