"""Searches for inputs that break the contract of Foretrace: an answer, or one clear error, within seconds.

Read `targets` first: it registers everything that reads something from outside. `mutators` makes an input from a sample
and a seed, `oracle` runs it and judges, `run` does so for hours. docs/fuzzing.md says how to use it.
"""
