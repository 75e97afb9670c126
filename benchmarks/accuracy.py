"""How near predictions come to measured training steps.

    python benchmarks/accuracy.py [--update]

Prints the errors of `benchmarks/truth` and, where `$FORETRACE_SHARED` or `../shared` has them, of the steps measured on
one GPU and of the development table. `--update` records the errors of the first two, to which
`tests/accuracy/test_truth.py` holds later predictions.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from foretrace.analysis.validate.results import by_family
from foretrace.analysis.validate.validate import validate
from foretrace.formats.training_runs import read_training_runs
from foretrace.report.validate import print_validation

HERE = Path(__file__).parent
ERRORS = HERE / "truth" / "errors.json"
SHARED = Path(os.environ.get("FORETRACE_SHARED") or HERE.parents[1] / "shared") / "data"
HELD = (HERE / "truth" / "korthikanti.csv", SHARED / "h200" / "single_gpu_steps.jsonl")
TABLE = SHARED / "runs" / "training_steps_dev.csv"


def main() -> None:
    """Predicts every table that is there."""
    recorded = dict(json.loads(ERRORS.read_text(encoding="utf-8"))) if ERRORS.exists() else {}
    for path in (*HELD, TABLE):
        if not path.exists():
            print(f"{path.name}: not there; nothing to compare with")
            continue
        started = time.perf_counter()
        found = validate(read_training_runs(path))
        print(f"\n{path.name}: {len(found.rows)} rows in {time.perf_counter() - started:.1f} s")
        print_validation(found)
        if path in HELD:
            recorded |= {group.name: round(group.mape, 5) for group in by_family(found.rows)}
    if "--update" in sys.argv[1:]:
        ERRORS.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"{ERRORS.name}: {recorded}")


if __name__ == "__main__":
    main()
