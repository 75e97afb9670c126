"""Reads a timeline: where the time of a step goes, why, and what would change it.

Read `breakdown.py` and `critical_path.py` first, then `answer/`, which holds the result of a simulation. `scenario.py`
states what is different from normal, and `scenario_texts.py` reads that from options. `chain.py`, `lanes.py`,
`links.py`, `memory.py`, `roofline.py`, `sharing.py` and `jitter.py` each read one aspect of a run; the folder has so
many modules because each of these stands alone. `families.py` and `sensitivity.py` find which ops are worth making
faster. `account.py` and `compare.py` set two runs side by side. `explain/` says why a run took so long,
`profiler_views/` analyses profiler traces, and `profiler_table.py` explains a profiler table.
"""
