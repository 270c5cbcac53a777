"""The best-first search of the core (`cpp/graph/best_first.hpp`), command by command, against a table without a heap."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from random import Random

import pytest

import tacos
from tacos import collective as co
from tacos import topology as tp

ROOT = Path(__file__).parents[1]
PLACES = 7
Key = tuple[int, int]


class Table:
    """What the search should do: the answers that commands print."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[Key, int, bool]] = {}  # key, mark, and whether it is a source
        self.open: set[int] = set()

    def start(self, place: int, key: Key) -> None:
        self.known[place] = (key, -1, True)
        self.open.add(place)

    def offer(self, place: int, key: Key, mark: int, visited: bool) -> bool:
        if place in self.known and (self.known[place][2] or self.known[place][0] <= key):
            return False
        self.known[place] = (key, mark, False)
        (self.open.add if visited else self.open.discard)(place)
        return True

    def next(self) -> int:
        if not self.open:
            return -1
        place = min(self.open, key=lambda place: (self.known[place][0], place))
        self.open.remove(place)
        return place

    def restart(self) -> None:
        self.known = {place: label for place, label in self.known.items() if label[2]}
        self.open = set(self.known)


def play(random: Random, steps: int) -> tuple[list[str], list[str]]:
    """Random commands, and what they should print."""
    table, commands, expected = Table(), [], []
    for _ in range(steps):
        what = random.choices(
            ["start", "offer", "pass", "next", "restart", "clear"], [2, 20, 4, 12, 1, 1]
        )[0]
        place, key, mark = (
            random.randrange(PLACES),
            (random.randrange(9), random.randrange(3)),
            random.randrange(99),
        )
        command = what
        match what:
            case "start":
                # A source that is visited again at the same key would be a second visit; it gets another key.
                if place in table.known and table.known[place][0] == key:
                    continue
                command = f"start {place} {key[0]} {key[1]}"
                table.start(place, key)
            case "offer" | "pass":
                command = f"{what} {place} {key[0]} {key[1]} {mark}"
                accepted = table.offer(place, key, mark, what == "offer")
                expected.append(f"{accepted:d}{accepted:d}")
            case "next":
                expected.append(str(table.next()))
            case "restart":
                table.restart()
            case "clear":
                table = Table()
        commands += [command, "known"]
        expected.append("".join(f"{p} {k[0]} {k[1]} {m} " for p, (k, m, _) in table.known.items()))
    return commands, expected


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_every_command_does_what_a_table_says(tmp_path: Path) -> None:
    """4,000 random commands: orders of visits, ties, late sources, places left out, restarts."""
    program = tmp_path / "search"
    source = ROOT / "tests" / "support" / "best_first.cpp"
    subprocess.run(["c++", "-std=gnu++20", f"-I{ROOT / 'cpp'}", source, "-o", program], check=True)
    commands, expected = play(Random(1), 4000)
    text = "\n".join([str(PLACES), *commands])
    answer = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == expected
    assert expected.count("11") > 300
    assert expected.count("00") > 300


def test_a_detour_is_nearer_than_a_slow_link() -> None:
    """From 0, 2 is 1 + 2 us away over 1, nearer than over the link of 8 us. So no pair is farther than 1 and 0: 2 + 3 + 4 us.

    Over the link of 8 us, 0 and 3 would be 8 + 3 us apart.
    """
    ends = [(0, 1, 1), (1, 2, 2), (0, 2, 8), (2, 3, 3), (3, 0, 4)]
    topology = tp.from_links(4, [(src, dst, "1GB/s", f"{us}us") for src, dst, us in ends])
    assert tacos.bound(topology, co.all_gather(4, 4)).latency_s == pytest.approx(9e-6)
