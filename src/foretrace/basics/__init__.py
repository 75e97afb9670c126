"""Tools that every room uses and that know nothing of training: errors, files, units, arrays, meshes.

Read `errors.py` first: the one family of errors, whose codes `codes.py` lists. `files.py` and `documents.py` read and
write files, `units.py` reads quantities as people write them, and `plain.py` turns dataclasses into JSON. `mesh.py`
and `placement.py` say which ranks form groups and where each rank runs; `limits.py` how large a job may be.
`arrays.py`, `trees.py`, `collector.py` and `progress.py` are small helpers.
"""
