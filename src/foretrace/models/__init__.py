"""Transformer architectures: what a model consists of, wherever its description comes from.

Read `model.py` first: the dataclasses of a model. `load.py` finds a model by name or file; `presets.py`, `spec.py` and
`write_spec.py` are Foretrace's own YAML, `hf_config.py` and `from_hf.py` Hugging Face configurations, and `compose.py`
and `ranges.py` say which layers differ. `parameters.py` and `flops.py` count; `describe.py` puts a model into words.
"""
