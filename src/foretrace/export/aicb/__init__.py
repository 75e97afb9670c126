"""Makes a SimAI/AICB workload file of a model and a plan.

Read `workload.py` first. `modules.py` names the rows and `rows.py` fills them. `express.py` reports what a file cannot
express, and `reduce.py` reduces a step to what it can, so that the cost of each loss can be measured.
"""

from foretrace.export.aicb.workload import Generated, aicb_workload

__all__ = ["Generated", "aicb_workload"]
