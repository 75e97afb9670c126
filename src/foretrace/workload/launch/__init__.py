"""Reads the launch scripts and configuration files of training frameworks.

Read `megatron.py` first: Megatron-LM's arguments as a model and the fields of a plan. `arguments.py` holds the options
of a file by name with their lines; `shell_words.py` reads the words of a script without running it.
"""
