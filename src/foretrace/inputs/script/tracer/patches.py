"""Replaces attributes of other packages while a script is traced, and puts them back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_ABSENT: Final = object()


class Patches:
    """Attributes that were replaced, with their values before."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []
        self._actions: list[Callable[[], object]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replaces an attribute of a class, module or object."""
        own = vars(owner).get(name, _ABSENT) if hasattr(owner, "__dict__") else getattr(owner, name, _ABSENT)
        self._replaced.append((owner, name, own))
        setattr(owner, name, value)

    def on_undo(self, action: Callable[[], object]) -> None:
        """Calls `action` before the attributes are put back."""
        self._actions.append(action)

    def undo(self) -> None:
        """Puts everything back, the last replaced first."""
        while self._actions:
            self._actions.pop()()
        while self._replaced:
            owner, name, value = self._replaced.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
