"""The first line of a workload file: a policy, then `key: value` in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn

from foretrace.basics.errors import Diagnostic, InputError, did_you_mean, quoted
from foretrace.basics.numbers import NumberError, any_number, whole_number
from foretrace.inputs.aicb.format.records import POLICIES, Header

KEYS: Final = {
    "model_parallel_NPU_group": "tp",
    "ep": "ep",
    "pp": "pp",
    "vpp": "vpp",
    "ga": "ga",
    "all_gpus": "all_gpus",
    "mode": "mode",
    "checkpoints": "checkpoints",
    "checkpoint_initiates": "checkpoint_initiates",
    "pp_comm": "pp_comm_bytes",
}
"""The field of Header for each key, in the order in which AICB writes them."""

LISTS: Final = ("checkpoints", "checkpoint_initiates")
"""Keys whose value is a count and then so many row numbers."""

EXAMPLE: Final = (
    'a workload file begins with a line such as "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 ep: 1 '
    'pp: 4 vpp: 1 ga: 16 all_gpus: 64", then the number of rows, then the rows'
)

_EP_OF_MICRO_TEST = "expert_parallel_npu_group"
_NAMED = 8
"""How many unknown words are named one by one."""


def parse_header(line: bytes, where: str) -> tuple[Header, list[Diagnostic]]:
    """The header in a line, and what is odd about how it is written."""
    policy, *words = (word.decode() for word in line.split())
    if policy not in POLICIES:
        raise InputError(
            "wrong-format",
            f"the first word, {quoted(policy)}, is not a policy{did_you_mean(policy, POLICIES)}",
            where=where,
            hint=EXAMPLE,
        )
    reading = _Reading(words, where)
    return reading.header(policy), reading.diagnostics


class _Reading:
    """Takes the words behind the policy apart."""

    def __init__(self, words: Sequence[str], where: str) -> None:
        self.words = words
        self.where = where
        self.at = 0
        self.values: dict[str, Any] = {}
        self.repeated: dict[str, None] = {}
        self.unknown: list[tuple[str, str]] = []
        self.stray: list[str] = []
        self.diagnostics: list[Diagnostic] = []

    def header(self, policy: str) -> Header:
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            if not _is_key(word):
                self.stray.append(word)
                continue
            key = word.removesuffix(":")
            if word == "pp_comm":
                self.note("odd-input", "pp_comm has no colon; it is read as pp_comm:, as SimAI does")
            if key in KEYS or key == _EP_OF_MICRO_TEST:
                self.known(key)
            else:
                self.unknown.append((key, self.rest_of_value()))
        self.settle_ep()
        self.diagnose()
        # Words without a key go first, so that a header written anew reads back the same.
        stray = (("", " ".join(self.stray)),) if self.stray else ()
        fields = {KEYS[key]: value for key, value in self.values.items()}
        return Header(policy, **fields, extra=(*stray, *self.unknown))

    def known(self, key: str) -> None:
        if key in self.values:
            self.repeated[key] = None
        if key in LISTS:
            count = self.value(key)
            left = len(self.words) - self.at
            if count > left:
                self.fail(
                    "bad-value",
                    f"{key}: {count} wants {count:,} row numbers, {left} words are left",
                    f'expected "{key}: 0"',
                )
            self.values[key] = tuple(self.value(key) for _ in range(count))
        elif key == "pp_comm":
            self.values[key] = self.value(key, fraction=True)
        else:
            self.values[key] = self.value(key)
            if key == "model_parallel_NPU_group" and self.values[key] == 0:
                self.fail("out-of-range", f"{key}: 0 ranks cannot share a layer", "expected 1 or more")

    def value(self, key: str, fraction: bool = False) -> Any:
        """The number in the next word."""
        expected = "a number of bytes, 0 or more" if fraction else "a whole number, 0 or more"
        if self.at == len(self.words):
            self.fail("missing-field", f"{key}: has no value", f"expected {expected}")
        word = self.words[self.at]
        self.at += 1
        try:
            return any_number(word) if fraction else whole_number(word)
        except NumberError as error:
            self.fail(error.code, f"{key}: {quoted(word)} {error}", f"expected {expected}")

    def rest_of_value(self) -> str:
        """The words up to the next key."""
        start = self.at
        while self.at < len(self.words) and not _is_key(self.words[self.at]):
            self.at += 1
        return " ".join(self.words[start : self.at])

    def settle_ep(self) -> None:
        """AICB's micro test has another name for ep; where a file has both, ep counts, as for SimAI."""
        if _EP_OF_MICRO_TEST not in self.values:
            return
        value = self.values.pop(_EP_OF_MICRO_TEST)
        if "ep" in self.values:
            self.warn(
                "conflicting-values", f"the header has ep: and {_EP_OF_MICRO_TEST}:; ep: {self.values['ep']} counts"
            )
        else:
            self.values["ep"] = value
            self.note("odd-input", f"{_EP_OF_MICRO_TEST}: {value} is taken as ep: {value}; SimAI does not know the key")

    def diagnose(self) -> None:
        for key in self.repeated:
            self.warn("duplicate-name", f"{key}: is given twice; the last value counts")
        for key, _ in self.unknown[:_NAMED]:
            self.warn("unknown-field", f"header key {quoted(key)} is not known{_meant(key)} It is kept and not used")
        if len(self.unknown) > _NAMED:
            self.warn("unknown-field", f"{len(self.unknown) - _NAMED:,} more header keys are not known, and not used")
        if self.stray:
            joined = next((word for word in self.stray if ":" in word), None)
            near = next((word for word in self.stray if word in KEYS), None)
            hint = f"; a key ends in a colon: {near}:" if near else "; a blank follows the colon" if joined else ""
            self.warn("odd-input", f"{quoted(' '.join(self.stray[:100]))} in the header belongs to no key{hint}")

    def note(self, code: str, message: str) -> None:
        self.diagnostics.append(Diagnostic("note", code, message, self.where))

    def warn(self, code: str, message: str) -> None:
        self.diagnostics.append(Diagnostic("warning", code, message, self.where))

    def fail(self, code: str, message: str, hint: str) -> NoReturn:
        raise InputError(code, message, where=self.where, hint=hint) from None


def _is_key(word: str) -> bool:
    return word == "pp_comm" or (len(word) > 1 and word[-1] == ":")


def _meant(key: str) -> str:
    """Returns the key that a person who wrote an unknown one may have meant."""
    if key == "tp":
        return "; did you mean model_parallel_NPU_group?"
    if key == "dp":
        return ": dp follows from all_gpus, tp and pp."
    return did_you_mean(key, KEYS) or "."
