"""Costs from files of schedulers and clouds, which name switches but no speeds.

A file lists the switches above every host. Every switch that a message passes counts 1 us.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos.reorder.costs import Costs, grouped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["expanded"]

_SWITCH_S = 1e-6
"""Seconds per switch if a file names only switches (chosen; orders depend only on ratios)."""

# A tree: the switches above every host, from the top down.
Paths = dict[str, tuple[str, ...]]


def _of_paths(paths: Mapping[str, Sequence[str]], source: str) -> Costs:
    """Count the switches between two hosts, a common one once."""
    hosts = list(paths)
    if len(hosts) < 2:
        raise ValueError(f"an order needs at least two hosts; {source} has {len(hosts)}")
    latency = np.zeros((len(hosts), len(hosts)))
    for i, a in enumerate(hosts):
        for j, b in enumerate(hosts):
            common = 0
            for one, other in zip(paths[a], paths[b], strict=False):
                if one != other:
                    break
                common += 1
            if i != j:
                passed = len(paths[a]) + len(paths[b]) - 2 * common + 1
                latency[i, j] = passed * _SWITCH_S
    return grouped(hosts, latency, None, source)


def _climb(parents: Mapping[str, str], leaf: str, source: str) -> tuple[str, ...]:
    path = [leaf]
    while path[-1] in parents:
        if len(path) > len(parents) + 1:
            raise ValueError(f"{source}: switch {leaf} is above itself")
        path.append(parents[path[-1]])
    return tuple(reversed(path))


def _tree(
    members: Mapping[str, Sequence[str]], below: Mapping[str, Sequence[str]], source: str
) -> Paths:
    """Return the paths of hosts, given the hosts and the switches below each switch."""
    parents = {one: switch for switch, some in below.items() for one in some}
    paths: Paths = {}
    for switch, hosts in members.items():
        path = _climb(parents, switch, source)
        for host in hosts:
            # A host may be listed at several levels; the lowest counts.
            if len(path) > len(paths.get(host, ())):
                paths[host] = path
    return paths


def ec2(_text: str, meaning: Any, source: str) -> Costs:
    """Read the output of `aws ec2 describe-instance-topology`: the switches above every instance."""
    return _of_paths(
        {
            str(one["InstanceId"]): [str(n) for n in one["NetworkNodes"]]
            for one in meaning["Instances"]
        },
        source,
    )


_TIERS = (
    re.compile(r"fabric\.topograph\.run/tier-(\d+)"),  # tier 1 is nearest to the node
    re.compile(r"topology\.k8s\.aws/network-node-layer-(\d+)"),  # layer 1 is the top
)
_NAMED_TIERS = ("core", "spine", "leaf")


def kubernetes(_text: str, meaning: Any, source: str) -> Costs:
    """Read the output of `kubectl get nodes -o json` of a cluster that topograph or EKS has labelled."""
    paths: Paths = {}
    for item in meaning["items"]:
        labels = item["metadata"].get("labels", {})
        found: list[str] = []
        for order, pattern in zip((-1, 1), _TIERS, strict=True):
            tiers = sorted(
                (order * int(m[1]), str(value))
                for key, value in labels.items()
                if (m := pattern.fullmatch(key))
            )
            found = found or [value for _, value in tiers]
        prefix = "network.topology.nvidia.com/"
        found = found or [
            str(labels[prefix + tier]) for tier in _NAMED_TIERS if prefix + tier in labels
        ]
        name = str(item["metadata"]["name"])
        if not found:
            raise ValueError(f"{source}: node {name} has no label that says where it is")
        paths[name] = tuple(found)
    return _of_paths(paths, source)


def topograph(_text: str, meaning: Any, source: str) -> Costs:
    """Read topograph's model of a cluster: switches with switches or nodes below them."""
    switches = meaning["switches"]
    rows = switches.items() if isinstance(switches, dict) else ((s["name"], s) for s in switches)
    members: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for name, row in rows:
        members[str(name)] = [h for one in row.get("nodes") or [] for h in expanded(str(one))]
        below[str(name)] = [s for one in row.get("switches") or [] for s in expanded(str(one))]
    return _of_paths(_tree(members, below, source), source)


def slurm_yaml(_text: str, meaning: Any, source: str) -> Costs:
    """Read the default topology of a topology.yaml, or the first one with switches or blocks."""
    fitting = [one for one in meaning if "tree" in one or "block" in one]
    if not fitting:
        raise ValueError(f"{source} has no tree and no block topology")
    chosen = next((one for one in fitting if one.get("cluster_default")), fitting[0])
    members: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for row in chosen.get("tree", {}).get("switches", []):
        members[row["switch"]] = expanded(row.get("nodes") or "")
        below[row["switch"]] = expanded(row.get("children") or "")
    for row in chosen.get("block", {}).get("blocks", []):
        members[row["block"]] = expanded(row.get("nodes") or "")
    return _of_paths(_tree(members, below, source), source)


SLURM_LINE = re.compile(
    r"^\s*(SwitchName|BlockName)\s*=\s*(\S+)(.*)$", re.IGNORECASE | re.MULTILINE
)
_SLURM_FIELD = re.compile(r"(\w+)\s*=\s*(\S+)")


def slurm_conf(text: str, _meaning: Any, source: str) -> Costs:
    """Read a topology.conf: trees of switches, or blocks."""
    members: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    plain = re.sub(r"#.*", "", text.replace("\\\n", " "))
    for match in SLURM_LINE.finditer(plain):
        fields = {name.lower(): value for name, value in _SLURM_FIELD.findall(match[3])}
        members[match[2]] = expanded(fields.get("nodes", ""))
        below[match[2]] = expanded(fields.get("switches", ""))
    return _of_paths(_tree(members, below, source), source)


def expanded(text: str) -> list[str]:
    """Expand a host list of Slurm to names.

    >>> expanded("node[1-2,08-10],login")
    ['node1', 'node2', 'node08', 'node09', 'node10', 'login']
    >>> expanded("r[0-1]n[0-1]")
    ['r0n0', 'r0n1', 'r1n0', 'r1n1']
    """
    return [name for part in _split(text) for name in _names(part)]


def _split(text: str) -> Iterator[str]:
    """Yield the parts between commas that are not inside brackets."""
    depth, part = 0, ""
    for letter in text.strip():
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            yield part
            part = ""
        else:
            part += letter
    if depth:
        raise ValueError(f"the host list {text!r} has a bracket without its other half")
    if part:
        yield part


def _names(part: str) -> list[str]:
    match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
    if match is None:
        return [part]
    head, ranges, tail = match.groups()
    numbers = []
    for one in ranges.split(","):
        low, _, high = one.partition("-")
        if not low.isdecimal() or (high and not high.isdecimal()):
            raise ValueError(f"the host list {part!r} has the range {one!r}; use numbers")
        numbers += [str(k).zfill(len(low)) for k in range(int(low), int(high or low) + 1)]
    return [f"{head}{number}{rest}" for number in numbers for rest in _names(tail)]
