"""Reproduces SimAI-Analytical's arithmetic, defects included.

SimAI-Analytical (github.com/aliyun/SimAI, v1.6 and v1.7) is a closed-form sum over the rows of an AICB workload file.
Read `totals.py` first: its figures. `load.py`, `tables.py` and `times.py` are what they are made of, `machine.py` its
C++ numbers, `flags.py` its command line and `csv.py` its report. `defects.py` says what each defect does to the total;
`own.py` and `compare.py` put our answer next to it.
"""

from foretrace.compat.simai.csv import end_to_end_csv, run_name
from foretrace.compat.simai.defects import Defect, explain, remainder
from foretrace.compat.simai.flags import SimaiFlags, parse_flags
from foretrace.compat.simai.tables import RatioTable, RatioTables, load_tables
from foretrace.compat.simai.totals import Figures, figures, figures_json

__all__ = [
    "Defect",
    "Figures",
    "RatioTable",
    "RatioTables",
    "SimaiFlags",
    "end_to_end_csv",
    "explain",
    "figures",
    "figures_json",
    "load_tables",
    "parse_flags",
    "remainder",
    "run_name",
]
