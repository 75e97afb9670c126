"""Maps plans to the options of training frameworks, and reads launch scripts and configurations back.

Read `rules.py` first: how fields of a plan and options map to each other. `megatron.py`, `bridge.py`, `torchtitan.py`
and `deepspeed.py` are the tables of frameworks; `megatron_model.py` describes models. `read_launch.py` recognises
files. `arguments.py` holds the options of a file by name, and `torchtitan_files.py` reads those of torchtitan.
`shell_words.py` reads the words of a script without running it.
"""
