"""The codes of errors and diagnostics: what each one means, in one sentence.

A code names a kind of mistake or remark, so that a script can react to it. The message says the particulars.
"""

from __future__ import annotations

from typing import Final

CODES: Final[dict[str, str]] = {
    # Files
    "file-not-found": "A file or folder does not exist, or a pattern matches nothing.",
    "folder-instead-of-file": "A folder was given where a file is expected.",
    "unreadable-file": "The operating system refuses to read a file.",
    "unwritable-file": "The operating system refuses to write a file.",
    "file-exists": "An output exists already and is not replaced without being asked.",
    "file-too-large": "A file is larger than any real file of its kind.",
    "empty-file": "A file or a table in it has no content.",
    "truncated-file": "A file ends before its content does.",
    "not-text": "A text file holds bytes that are not text.",
    "bad-compression": "A compressed file cannot be unpacked.",
    "bad-syntax": "A file is not valid JSON, YAML, XML or CSV, or a line does not have the form of its format.",
    "wrong-format": "A file is of another format than the one expected here.",
    "unknown-version": "A file states a version of its format that is not known.",
    "missing-package": "An optional Python package that this needs is not installed.",
    # Values
    "missing-field": "A required field, column or key is missing.",
    "unknown-field": "A field, column, key or section is not known.",
    "duplicate-name": "Something is named or listed twice that may be there once.",
    "bad-value": "A value has the wrong type or form.",
    "out-of-range": "A number is outside the range that can be meant.",
    "unknown-name": "No model, cluster, GPU, op or other thing has this name.",
    "ambiguous-name": "A name stands for several things.",
    "conflicting-values": "Two statements in a file or a plan contradict each other.",
    # Command line
    "usage": "The command line cannot be understood.",
    "missing-argument": "A command needs an argument or option that was not given.",
    "option-not-for-input": "An option was given that this kind of input does not have.",
    "option-not-for-command": "An option was given that has no effect together with the other arguments.",
    "conflicting-options": "Two options exclude each other.",
    "repeated-option": "An option was given twice for the same thing.",
    "output-overwrites-input": "An output would replace an input or another output.",
    "needs-cluster": "The question can only be answered on a cluster, and none was named.",
    "several-inputs": "Files that do not belong to one job were given together.",
    # Jobs and programs
    "bad-mesh": "Axis sizes, ranks and groups do not make a mesh.",
    "not-divisible": "Something cannot be divided evenly: GPUs, layers, heads, experts, batches.",
    "too-large": "The job is larger than can be simulated.",
    "cluster-too-small": "The job needs more GPUs or nodes than the cluster has.",
    "bad-placement": "A placement does not give every rank a place of its own.",
    "no-such-rank": "A rank, stage, layer or step does not exist.",
    "invalid-program": "A program breaks a rule of programs.",
    "invalid-schedule": "A schedule breaks a rule of schedules, or does not fit the pipeline.",
    "unpriced-op": "An op has no duration, and nothing given can price it.",
    "rendezvous-mismatch": "Ranks that meet in a collective do not issue the same calls.",
    "deadlock": "Ranks wait for each other in a cycle.",
    "out-of-memory": "The job does not fit into the memory of its GPUs.",
    "unsupported-precision": "The GPU has no units for this precision.",
    "bad-plan": "The fields of a plan do not go together, or not with the model.",
    "unknown-collective": "A collective is not known, or cannot be run as asked.",
    "nothing-to-do": "Nothing of the input can be used for what was asked.",
    # Diagnostics: what was read
    "rows-skipped": "Rows, lines or events were left out.",
    "field-ignored": "A field or flag was read and has no effect.",
    "odd-input": "The input has something unusual, and it is read as the message says.",
    "repaired-input": "The input was damaged in a known way and is read as repaired.",
    "cannot-simulate": "The file can be inspected but not simulated.",
    # Diagnostics: what was assumed and how it was done
    "assumed": "A value that the input does not state was assumed.",
    "guessed": "A value was guessed from something else in the input.",
    "replaced-option": "An option was changed to the nearest one that is possible.",
    "as-recorded": "Times are those of the recording and do not change with the machine.",
    "repriced": "Recorded times were replaced by prices of the machine.",
    "not-modelled": "Something real is left out of the simulation.",
    "extrapolated": "A price lies outside of what was measured.",
    "price-source": "Where prices come from, or why a source is not used.",
    "uncertain": "The result is less certain than usual, for the stated reason.",
    "left-out": "A part of the answer was left out because it would take too long.",
    # Programs, steps, machines and plans
    "damaged-file": "A file's checksums or counts do not agree with its content.",
    "bad-topology": "The parts of a network do not go together, or a file format cannot express them.",
    "no-route": "The network has no way between two GPUs, or a link on the way carries nothing.",
    "steps-not-settled": "Steps had not settled into a rhythm when the simulation ended.",
    "steps-cycle": "Steps settle into a cycle of several, and the step time is its mean.",
    "steps-drift": "Parts of the job run at a pace of their own, and the slowest sets the step time.",
    "machine-differs": "What NCCL found on the machine differs from the cluster.",
    "beats-line-rate": "A measurement is faster than the hardware of the cluster can be.",
    "slowest-gpu": "Prices include that the slowest of many GPUs sets the pace.",
    "power-clock": "Prices include the clock that the power drawn by the job leaves the GPU.",
    "uneven-stages": "Layers do not divide evenly, and were given to the parts of the pipeline as the message says.",
    "vocabulary-padded": "The vocabulary was padded to a size that can be split.",
}
