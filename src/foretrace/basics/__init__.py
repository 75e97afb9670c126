"""Tools that every room uses and that know nothing of training: errors, files, numbers, units, arrays, meshes.

Read `errors.py` first: the one family of errors, whose codes `codes.py` lists. `files.py`, `documents.py` and
`records.py` read files within the limits of `limits.py`, `outputs.py` writes them, and `file_registry.py` keeps both
apart. `numbers.py` reads numbers and
`units.py` quantities as people write them; `plain.py` turns dataclasses into JSON. `mesh.py` and `placement.py` say
which ranks form groups and where each rank runs. There are many modules because each is one small tool that others
import without the rest.
"""
