"""Sizes that a user gives with `--set` because a profile does not hold them, such as `--set params=1.1e9`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from foretrace.basics.errors import InputError, did_you_mean
from foretrace.basics.units import parse_bytes, parse_count, parse_tokens

DTYPES: Final = {
    "fp32": "fp32", "float32": "fp32", "fp16": "fp16", "float16": "fp16", "bf16": "bf16", "bfloat16": "bf16",
    "fp8": "fp8",
}  # fmt: skip
"""Types of what is communicated, as people write them, by their names in `program.kernels`."""

OVERLAPS: Final = ("on", "none")
"""Values of `overlap`: gradients are reduced under the backward, or all of them after it."""

_DEFAULT_DTYPE: Final = "bf16"
_COUNTS: Final = ("moe.tokens", "moe.hidden", "moe.topk", "moe.params", "params", "steps")


@dataclass(slots=True)
class UserSizes:
    """Names and values as they were given; `used` are the names that something has asked for."""

    given: Mapping[str, str]
    used: set[str] = field(default_factory=set)

    @classmethod
    def checked(cls, pairs: Sequence[tuple[str, str]], known: Sequence[str], where: str | None = None) -> UserSizes:
        """Names and values, every one of which is known and can be read; `group.NAME` stands for any group."""
        sizes = cls(dict(pairs))
        for name in sizes.given:
            if name not in known and not ("group.NAME" in known and name.startswith("group.")):
                raise InputError(
                    "unknown-name",
                    f"--set {name}: no such size{did_you_mean(name, known)}",
                    where=where,
                    hint=f"known: {', '.join(known)}",
                )
            sizes._check(name)
        sizes.used.clear()
        return sizes

    def count(self, name: str) -> int | None:
        """A whole number above 0; None where it is not given."""
        text, parse = self._asked(name), parse_tokens if name.endswith(".tokens") else parse_count
        return None if text is None else _positive(parse(text, where=f"--set {name}"), name)

    def bytes(self, name: str) -> int | None:
        """A size above 0; None where it is not given."""
        text = self._asked(name)
        return None if text is None else _positive(parse_bytes(text, where=f"--set {name}"), name)

    def dtype(self) -> str:
        """The type of what is communicated, as `program.kernels` names it."""
        text = self._asked("dtype") or _DEFAULT_DTYPE
        if text.lower() not in DTYPES:
            raise InputError(
                "unknown-name",
                f'dtype "{text}" is not known{did_you_mean(text, DTYPES)}',
                where="--set dtype",
                hint=f"known: {', '.join(DTYPES)}",
            )
        return DTYPES[text.lower()]

    def _asked(self, name: str) -> str | None:
        self.used.add(name)
        return self.given.get(name)

    def _check(self, name: str) -> None:
        """Raises an error where a value cannot be read."""
        if name.endswith(".bytes"):
            self.bytes(name)
        elif name == "dtype":
            self.dtype()
        elif name in _COUNTS:
            self.count(name)


def _positive(value: int, name: str) -> int:
    if value < 1:
        raise InputError("out-of-range", f"{name} is {value}", where=f"--set {name}", hint="expected a number above 0")
    return value
