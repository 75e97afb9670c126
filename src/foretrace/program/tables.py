"""The tables of a program under construction: names and things to numbers, numbered as they come."""

from __future__ import annotations

from foretrace.basics.errors import InputError
from foretrace.program.columns import LaneKind
from foretrace.program.program import Communicator, Lane, Resource, Source

AS_WRITTEN = "as written in the program"


class Tables:
    """What ops refer to by number."""

    def __init__(self) -> None:
        self.strings: dict[str, int] = {}
        self.lanes: dict[str, Lane] = {}
        self.communicators: dict[Communicator, int] = {}
        self.resources: dict[str, Resource] = {}
        self.sources: dict[Source, int] = {Source(AS_WRITTEN): 0}
        self._lane_numbers: dict[str, int] = {}
        self._communicators_seen: dict[int, tuple[Communicator, int]] = {}

    def string(self, text: str) -> int:
        """The number of a name, a kernel or a dtype."""
        return self.strings.setdefault(text, len(self.strings))

    def lane(self, name: str, kind: LaneKind) -> int:
        """The number of a lane; one that computes is a compute lane, whatever else it carries."""
        known = self.lanes.get(name)
        if known is None or (kind == "compute" != known.kind):
            self.lanes[name] = Lane(name, kind)
        return self._lane_numbers.setdefault(name, len(self._lane_numbers))

    def communicator(self, communicator: Communicator) -> int:
        """The number of a communicator."""
        # Its groups may be many, and hashing them for every op slow.
        same, number = self._communicators_seen.get(id(communicator), (None, -1))
        if same is not communicator:
            number = self.communicators.setdefault(communicator, len(self.communicators))
            self._communicators_seen[id(communicator)] = communicator, number
        return number

    def source(self, source: Source) -> int:
        """The number of a source of prices."""
        return self.sources.setdefault(source, len(self.sources))

    def resource(self, name: str) -> int:
        """The number of a resource, which must have been declared."""
        if name not in self.resources:
            raise InputError(
                "unknown-name",
                f'resource "{name}" is drawn on but not declared',
                hint="declare it: build.resource(...)",
            )
        return list(self.resources).index(name)
