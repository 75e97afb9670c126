"""Calibrations: made of a user's measurements, fitted to whole steps, and held against a job."""
