"""The codes of errors and diagnostics: what each one means, in one sentence.

A code names a kind of mistake or remark, so that a script can react to it. The message states the particulars.
`python -m foretrace.basics.codes > docs/diagnostics.md` writes the page that lists them.
"""

from __future__ import annotations

from typing import Final

SECTIONS: Final[dict[str, dict[str, str]]] = {
    "Files": {
        "file-not-found": "A file or folder does not exist, or a pattern matches nothing.",
        "folder-instead-of-file": "A folder was given where a file is expected.",
        "unreadable-file": "The operating system refuses to read a file.",
        "input-too-large": "A file, or what it expands to, is larger than any real file of its kind.",
        "too-deep": "Lists or objects of a file are nested deeper than in any real file of its kind.",
        "gave-up": "A file took longer to read, or a job longer to run, than its limit allows.",
        "empty-file": "A file or a table in it has no content.",
        "truncated-file": "A file ends before its content does.",
        "damaged-file": "A file's checksums or counts do not agree with its content.",
        "not-text": "A text file holds bytes that are not text.",
        "bad-compression": "A compressed file cannot be unpacked.",
        "bad-syntax": "A file is not valid JSON, YAML, XML or CSV, or a line does not have the form of its format.",
        "wrong-format": "A file is of another format than the one expected here.",
        "unknown-version": "A file states a version of its format that is not known.",
        "files-skipped": "Files that are not of the kind that is read were left out.",
        "missing-package": "An optional Python package that this needs is not installed.",
    },
    "Values": {
        "missing-field": "A required field, column or key is missing.",
        "unknown-field": "A field, column, key or section is not known.",
        "field-ignored": "A field or flag was read and has no effect.",
        "duplicate-name": "Something is named or listed twice that may be there once.",
        "bad-value": "A value has the wrong type or form.",
        "out-of-range": "A number is outside the range that can be meant.",
        "unknown-name": "No model, cluster, GPU, op or other thing has this name.",
        "ambiguous-name": "A name stands for several things.",
        "conflicting-values": "Two statements in a file or a plan contradict each other.",
        "unset-variable": "A script uses a variable that it does not set.",
        "assumed": "A value that the input does not state was assumed.",
        "guessed": "A value was guessed from something else in the input.",
    },
    "Command line": {
        "usage": "The command line cannot be understood.",
        "missing-argument": "A command needs an argument or option that was not given.",
        "option-not-for-input": "An option was given that this kind of input does not have.",
        "option-not-for-command": "An option was given that has no effect together with the other arguments.",
        "conflicting-options": "Two options exclude each other.",
        "repeated-option": "An option was given twice for the same thing.",
        "unused-flags": "Flags of a launch script that nothing is read from.",
        "replaced-option": "An option was changed to the nearest one that is possible.",
        "needs-cluster": "The question can only be answered on a cluster, and none was named.",
        "several-inputs": "Files that do not belong to one job were given together.",
        "nothing-to-do": "Nothing of the input can be used for what was asked.",
        "left-out": "A part of the answer was left out because it would take too long.",
    },
    "Outputs": {
        "file-exists": "An output exists already and is not replaced without being asked.",
        "unwritable-file": "The operating system refuses to write a file.",
        "output-overwrites-input": "An output would replace an input or another output.",
        "folder-in-use": "A folder that was written to held files before.",
        "not-expressible": "A plan has something that the format to be written has no place for.",
        "not-launchable": "No framework whose launch arguments are known runs the plan, or the named one does not.",
        "lossy-format": "The file that was written says something only in part, or in another way.",
        "needs-option": "The file that was written cannot say something that an option must say when it is simulated.",
    },
    "Plans and jobs": {
        "bad-plan": "The fields of a plan do not go together, or not with the model.",
        "bad-mesh": "Axis sizes, ranks and groups do not make a mesh.",
        "not-divisible": "Something cannot be divided evenly: GPUs, layers, heads, experts, batches.",
        "no-plans": "No combination of the values of a search is a plan that the software can launch.",
        "recompute-saves-nothing": "The backward computes again what takes no memory to keep.",
        "uneven-stages": "Layers do not divide evenly, and were given to the parts of a pipeline as the message says.",
        "slow-stage": "A pipeline stage works for longer than the mean of all stages, and the others wait for it.",
        "vocabulary-padded": "The vocabulary was padded to a size that can be split.",
        "invalid-schedule": "A schedule breaks a rule of schedules, or does not fit the pipeline.",
        "too-large": "The job is larger than can be simulated.",
        "cluster-too-small": "The job needs more GPUs or nodes than the cluster has.",
        "bad-placement": "A placement does not give every rank a place of its own.",
        "domain-gpus": "The job uses part of each link domain; the message says how many GPUs and how to ask for it.",
        "group-crosses-domain": "Groups that communicate in every layer cross link domains.",
        "no-such-rank": "A rank, stage, layer or step does not exist.",
        "out-of-memory": "The job does not fit into the memory of its GPUs.",
        "nothing-fits": "No plan of a search fits into memory or meets the deadline.",
        "deadline-missed": "The training takes longer than asked for on the largest cluster that was allowed.",
        "loose-bound": "Bounds of plans leave something out, so that a search simulates more of them.",
        "refuted-plans": "Plans that might have fitted into memory do not, as their simulations show.",
        "memory-tight": "Whether the job fits depends on how much its allocator fragments memory.",
        "scaling": "The batch stays, or grows, when a sweep varies the GPUs of a job.",
        "unsupported-precision": "The GPU has no units for this precision.",
    },
    "Clusters and networks": {
        "bad-topology": "The parts of a network do not go together, or a file format cannot express them.",
        "no-route": "The network has no way between two GPUs, or a link on the way carries nothing.",
        "unknown-collective": "A collective is not known, or cannot be run as asked.",
        "slowest-group": "Groups of a collective sit in different ways, and the slowest is told of.",
        "impaired-network": "Parts of the network are out of service or carry other traffic.",
        "machine-differs": "The machine that NCCL found differs from the cluster.",
        "beats-line-rate": "A measurement is faster than the hardware of the cluster can be.",
        "slower-choice": "NCCL's choice for a collective is slower than another way by our estimate.",
        "links-differ": "Messages on the links of a cluster and formulas differ in what a collective takes.",
        "simplified-messages": "Messages are too many to run one by one, and are run in the stated simpler way.",
        "tool-failed": "Another program that this one runs failed.",
    },
    "Workload files": {
        "header-key-missing": "The header of a workload file leaves a key out.",
        "row-count-mismatch": "A workload file has another number of rows than it declares.",
        "vpp-reading": "A workload's vpp was read as layers per stage or as chunks per stage.",
        "unmeasured-compute": "A workload holds no measured computation, so that the result is communication alone.",
        "simai-reads-differently": "SimAI reads a part of the workload file in another way than is meant.",
    },
    "Recordings": {
        "rows-skipped": "Rows, lines or events were left out.",
        "odd-input": "The input has something unusual, and it is read as the message says.",
        "odd-layout": "A text has unusual line ends, blank lines, a byte order mark or codes of a terminal.",
        "repaired-input": "The input was damaged in a known way and is read as repaired.",
        "cannot-simulate": "The file can be inspected but not simulated.",
        "not-recorded": "The recording lacks something that the profiler could have recorded or that the job needs.",
        "runs-joined": "Folders hold ranks of one real run, one folder for each node, and were joined.",
        "runs-found": "Files were told apart as runs, and the message says which ranks each has.",
        "one-of-several": "The input holds several runs, iterations or tables, of which one was taken.",
        "several-iterations": "A file holds several iterations of the same training.",
        "steps-left-out": "Recorded steps were left out: cut off, unlike the others or a warm-up.",
        "missing-ranks": "Ranks have no trace; if the job is simulated nevertheless, the message says what stands in.",
        "unknown-mesh": "The input does not tell the mesh, or the axis of a group, and it has to be given.",
        "clocks-aligned": "The clocks of hosts or traces were set by communications that they end together.",
        "clocks-apart": "The clocks of hosts or traces could not be aligned, since they never meet.",
        "traces-joined": "Recordings of one run were joined; the message says how much of each was found in another.",
        "as-recorded": "Times are those of the recording and do not change with the machine.",
        "profiled-steps": "Steps are as recorded, slowed by the profiler.",
        "changed-as-asked": "The job differs from the listed or recorded one in what was asked for.",
        "cannot-change": "A recording does not hold what a job changed in this way would do.",
        "replay-differs": "The replay of a recording does not take what was recorded.",
    },
    "Prices": {
        "unpriced-op": "An op has no duration, and nothing given can price it.",
        "price-source": "The message names the source of prices, or the reason why a source is not used.",
        "repriced": "Recorded times were replaced by prices of the machine.",
        "extrapolated": "A price lies outside of what was measured.",
        "uncertain": "The result is less certain than usual, for the stated reason.",
        "cluster-unused": "The job carries all its prices, so that the cluster changes nothing.",
        "slowest-stands-for-all": "Ranks are too many to run apart: the slowest group's price stands for its axis.",
        "slowest-gpu": "Prices include that the slowest of many GPUs sets the pace.",
        "slowest-not-modelled": "A recording of few GPUs does not tell how slow the slowest of many is.",
        "power-clock": "Prices include the clock that the power drawn by the job leaves the GPU.",
        "compute-of-other-gpu": "Computation keeps the time of the GPU it was recorded on, which the cluster lacks.",
        "no-device": "This machine has no GPU that could be measured.",
        "other-gpu": "Measurements are of another GPU than the others, or than the job runs on.",
        "beats-peak": "What-ifs make kernels faster than the peak of the GPU.",
        "limit-moved": "A what-if moves the limit of communication to another figure.",
        "training-frequency": "Collectives are priced at the frequency that SMs have in training.",
        "what-if-without-effect": "A what-if of the machine changes no price of the job.",
        "calibration-of-other-stack": "A calibration holds kernels of another stack than the plan's.",
    },
    "Simulations": {
        "invalid-program": "A program breaks a rule of programs.",
        "rendezvous-mismatch": "Ranks that meet in a collective do not issue the same calls.",
        "deadlock": "Ranks wait for each other in a cycle.",
        "not-modelled": "Something real is left out of the simulation.",
        "steps-not-settled": "Steps had not settled into a rhythm when the simulation ended.",
        "steps-cycle": "Steps settle into a cycle of several, and the step time is its mean.",
        "steps-drift": "Parts of the job run at a pace of their own, and the slowest sets the step time.",
        "overlap-cost": "Kernels run slower next to collectives; the message says how much of the step that is.",
        "jitter": "Computation varies, and groups wait for their slowest.",
    },
    "Analyses": {
        "reads-measured": "A prediction reads the measurement that it is compared with.",
        "different-mesh": "Two compared runs do not have the same ranks in the same places.",
        "different-microbatches": "Two compared runs do not have the same number of microbatches.",
        "different-step-times": "One step time is the period of steps in a row, the other the makespan of one step.",
        "too-little-data": "A run has too little of something, so that it is not analysed.",
        "host-busy": "The host is busy launching kernels for most of the step.",
        "memory-imbalance": "A step does not free as much memory as it allocates.",
    },
}
"""All codes by what they are about."""

CODES: Final[dict[str, str]] = {code: meaning for codes in SECTIONS.values() for code, meaning in codes.items()}

EXIT_CODES: Final[dict[int, str]] = {
    0: "The command did what was asked.",
    2: "The command line is wrong.",
    3: "A file, a field or an argument cannot be used.",
    4: "Nothing satisfies what was asked; for example, the job does not fit into memory.",
    5: "The job deadlocks.",
    130: "The command was interrupted.",
}


def codes_page() -> str:
    """Returns the text of docs/diagnostics.md."""
    lines = [
        "# Codes of errors and diagnostics",
        "",
        "<!-- written by: python -m foretrace.basics.codes > docs/diagnostics.md -->",
        "",
        "Every error and diagnostic has a code for scripts; messages may be reworded, codes are not.",
        "With `--json` an error is one object on stdout,",
        '`{"error": {"code", "message", "where", "hint"}}`, and the command ends with the same exit code.',
        "Each entry of an answer's `diagnostics` has `code`, `level` (`note` or `warning`), `message` and",
        "`where`.",
        "",
        "| exit code | meaning |",
        "| --: | --- |",
        *(f"| {number} | {meaning} |" for number, meaning in EXIT_CODES.items()),
    ]
    for title, codes in SECTIONS.items():
        lines += ["", f"## {title}", "", "| code | meaning |", "| --- | --- |"]
        lines += [f"| `{code}` | {meaning} |" for code, meaning in codes.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(codes_page(), end="")
