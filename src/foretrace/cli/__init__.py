"""The command line: one module per command, without logic of its own.

Read `main.py` first: it lists the commands and imports each when it is run, so that `--help` stays fast. There are many
modules because each command is one, with a function `command` and a text `EXAMPLES`.
`groups.py` holds the options, one group for each noun, `changes.py` changes a question as options would, and `emit.py`
writes answers. `views.py` and `simai.py` are parts of `explain` and `simulate`.
"""
