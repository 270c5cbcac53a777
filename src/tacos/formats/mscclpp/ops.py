"""The text of a threadblock's operations, and where its GPU threads must synchronize."""

from __future__ import annotations

from functools import lru_cache

from tacos.formats.mscclpp.execution_plan import MOST_CHANNELS_PER_OP, MOST_SEMAPHORES_PER_OP

__all__ = ["Ops", "Place", "away", "local", "orders"]

Place = tuple[int, int]
"""A buffer and a slot of it."""

NOP = '{"name":"nop"}'
_LETTERS = "ios"


class Ops:
    """The operations of a threadblock.

    Signals, waits, semaphores and port channels are handled by few GPU threads, data by all, and threads wait for each
    other only at a nop.
    """

    def __init__(self, *, careful: bool) -> None:
        self.text: list[str] = []
        self._careful = careful  # slots have more than one name
        self._waited = self._moved = False
        self._read: set[Place] = set()
        self._written: set[Place] = set()

    def _nop(self) -> None:
        self.text.append(NOP)
        self._waited = self._moved = False
        self._read.clear()
        self._written.clear()

    def _settle(self) -> None:
        if self._waited or self._moved:
            self._nop()

    def wait(self, kind: str, channel: int) -> None:
        self.text.append(_order("wait", kind, (channel,)))
        self._waited = True

    def signal(self, kind: str, channel: int) -> None:
        self._settle()
        self.text.append(_order("signal", kind, (channel,)))

    def acquire(self, semaphores: list[int]) -> None:
        self._semaphores("sem_acquire", semaphores)
        self._waited = True

    def release(self, semaphores: list[int]) -> None:
        self._settle()
        self._semaphores("sem_release", semaphores)

    def _semaphores(self, name: str, semaphores: list[int]) -> None:
        for at in range(0, len(semaphores), MOST_SEMAPHORES_PER_OP):
            some = ",".join(map(str, semaphores[at : at + MOST_SEMAPHORES_PER_OP]))
            self.text.append(f'{{"name":"{name}","semaphore_ids":[{some}]}}')

    def data(
        self,
        name: str,
        sources: str,
        target: str,
        reads: tuple[Place, ...],
        writes: tuple[Place, ...],
        count: int,
        *,
        memory: bool = False,
    ) -> None:
        """Add an operation that reads and writes `count` slots of this GPU, starting at each of the places."""
        if count > 1:
            reads, writes = _all_slots(reads, count), _all_slots(writes, count)
        if self._moved and not self._waited:
            clash = (
                self._careful
                or not self._written.isdisjoint(reads)
                or not self._written.isdisjoint(writes)
                or not self._read.isdisjoint(writes)
            )
            if clash:
                self._nop()
        elif self._waited:
            self._nop()
        self._read.update(reads)
        self._written.update(writes)
        self._moved = True
        kind = ',"channel_type":"memory"' if memory else ""
        kind += ',"reduce_op":"sum"' if name in ("re", "rre") else ""
        self.text.append(f'{{"name":"{name}","src_buff":[{sources}],"dst_buff":[{target}]{kind}}}')

    def put(self, kind: str, channel: int, source: Place, there: str, count: int) -> None:
        """Add a put, and a signal over the channel unless that is -1."""
        if kind == "memory":
            self.data("put", local(source, count), there, (source,), (), count, memory=True)
            if channel >= 0:
                self.signal(kind, channel)
            return
        # One GPU thread asks the proxy, and waits until the slot may be overwritten.
        self._settle()
        self._read.update(_all_slots((source,), count))
        self.text.append(
            f'{{"name":"pwsf","src_buff":[{local(source, count)}],"dst_buff":[{there}],'
            f'"channel_type":"port","channel_ids":[{channel}]}}'
        )


def _all_slots(places: tuple[Place, ...], count: int) -> tuple[Place, ...]:
    return tuple((buffer, slot + i) for buffer, slot in places for i in range(count))


@lru_cache(1 << 16)
def local(place: Place, count: int) -> str:
    """Return the GPU's own slots as a buffer reference."""
    return f'{{"type":"{_LETTERS[place[0]]}","index":{place[1]},"size":{count}}}'


def away(buffer: int, slot: int, count: int) -> str:
    """Return a peer's slots as a buffer reference, by the number of the peer's buffer within the threadblock."""
    return f'{{"buffer_id":{buffer},"index":{slot},"size":{count}}}'


def orders(name: str, kind: str, channels: list[int]) -> list[str]:
    """Return signals or waits over many channels, in as few operations as possible."""
    starts = range(0, len(channels), MOST_CHANNELS_PER_OP)
    return [_order(name, kind, tuple(channels[at : at + MOST_CHANNELS_PER_OP])) for at in starts]


@lru_cache(1 << 10)
def _order(name: str, kind: str, channels: tuple[int, ...]) -> str:
    some = ",".join(map(str, channels))
    return f'{{"name":"{name}","channel_ids":[{some}],"channel_type":"{kind}"}}'
