"""The record of a kind of collective: its name and its traits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["Kind", "Row"]


class Row(NamedTuple):
    """One block of a kind that lists its blocks; `chunks` cuts every block into this many chunks.

    Attributes:
        size: Bytes.
        before: NPUs that hold it, or a contribution to it.
        after: NPUs that must have it in the end.
        sums: Whether its value is the sum of all contributions; otherwise the holders have equal replicas.
    """

    size: int
    before: Sequence[int]
    after: Sequence[int]
    sums: bool = False


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The traits of a kind of collective.

    The defaults describe a kind that lists its blocks: it needs a name and ``rows``. The built-in kinds come from
    the table of the core (``cpp/model/collective_kind.hpp``), which stores them without lists.

    Attributes:
        name: Such as ``"all_reduce"``.
        rows: Makes the blocks from the members, the size in bytes and the root (-1 without one); None for kinds that
            are stored symbolically.
        unit: What is cut into chunks: a ``"member"``'s part, a ``"pair"``'s block, the whole ``"buffer"``, the
            buffer into equal parts that members ``"share"``, or a listed ``"row"``.
        reduces: Whether values are sums. Blocks that are listed say so themselves: see `CollectivePart.sums`.
        rooted: Whether one member is the root.
        per_pair: Whether every pair of members has a block of its own.
        spreads: Whether each chunk goes to, or comes from, the whole group.
        two_phases: Whether chunks are collected from the whole group and then spread to all of it.
        even: Whether the size alone determines the size of each chunk.
        listed: Whether blocks list their own holders, so that the part has no group.
        whole_input: Whether a member's input buffer is the whole one and not only its own part.
        whole_output: Whether a member's output buffer is the whole one and not only its own part.
        reverse: The kind with inputs and outputs exchanged.

    >>> Kind(name="half_gather").label
    'half-gather'
    """

    name: str
    rows: Callable[[Sequence[int], int, int], Iterable[Row]] | None = None
    unit: Literal["member", "share", "pair", "buffer", "row"] = "row"
    reduces: bool = False
    rooted: bool = False
    per_pair: bool = False
    spreads: bool = False
    two_phases: bool = False
    even: bool = False
    listed: bool = True
    whole_input: bool = True
    whole_output: bool = True
    reverse: str = "custom"

    @property
    def label(self) -> str:
        """The name for people, such as ``"all-reduce"``."""
        return self.name.replace("_", "-")

    @property
    def uniform(self) -> bool:
        """Whether all members do the same, with equal parts."""
        return self.even and not self.rooted
