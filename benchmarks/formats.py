"""Speed of algorithm formats: writing, reading, verifying and converting a 128-NPU all-reduce.

Times depend on the machine; the reference is the time to parse the same XML without using it.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from xml.parsers import expat

import tacos
from tacos import workload


def timed(work):
    """Return the time of the shortest of three runs, and the last result."""
    shortest, result = float("inf"), None
    for _ in range(3):
        begin = time.perf_counter()
        result = work()
        shortest = min(shortest, time.perf_counter() - begin)
    return shortest, result


def msccl(schedule, folder):
    """MSCCL XML: packed and written, read, verified."""
    path = folder / "ar.xml"
    lower_s, program = timed(lambda: tacos.lower(schedule))
    write_s, _ = timed(lambda: tacos.save(program, path))
    read_s, found = timed(lambda: tacos.load(path))
    verify_s, report = timed(lambda: tacos.verify(found))
    parse_s, _ = timed(lambda: expat.ParserCreate().Parse(path.read_bytes(), True))
    return {
        "format": "msccl",
        "bytes": path.stat().st_size,
        "lowered_steps": program.steps,
        "written_steps": found.steps,
        "lower_s": round(lower_s, 3),
        "write_s": round(write_s, 3),
        "read_s": round(read_s, 3),
        "verify_s": round(verify_s, 3),
        "read_per_bare_parse": round(read_s / parse_s, 1),
        "ok": report.ok,
    }


def chakra(schedule, folder):
    """Chakra traces with all files for ASTRA-sim: written, read, verified; nodes per second."""
    path = folder / "ar"
    lower_s, program = timed(lambda: tacos.lower(schedule))
    size = schedule.collective.size_bytes
    write_s, _ = timed(lambda: tacos.save(program, path, format="chakra", size=size))
    read_s, found = timed(lambda: tacos.load(path))
    verify_s, report = timed(lambda: tacos.verify(found))
    nodes = workload.load(path).nodes
    for file in folder.glob("ar.*"):
        file.unlink()
    return {
        "format": "chakra",
        "steps": program.steps,
        "nodes": nodes,
        "lower_s": round(lower_s, 3),
        "write_s": round(write_s, 3),
        "read_s": round(read_s, 3),
        "verify_s": round(verify_s, 3),
        "nodes_written_per_s": round(nodes / write_s),
        "nodes_read_per_s": round(nodes / read_s),
        "ok": report.ok and found == program,
    }


def mscclpp(schedule, folder):
    """MSCCL++ plans: divided among threadblocks and written, read, verified."""
    path = folder / "ar.json"
    program = tacos.lower(schedule)
    write_s, _ = timed(lambda: tacos.save(program, path, threadblocks=512))
    read_s, found = timed(lambda: tacos.load(path))
    verify_s, report = timed(lambda: tacos.verify(found))
    return {
        "format": "mscclpp",
        "bytes": path.stat().st_size,
        "written_steps": found.steps,
        "write_s": round(write_s, 3),
        "read_s": round(read_s, 3),
        "verify_s": round(verify_s, 3),
        "ok": report.ok,
    }


NAMES = {"msccl": "ar.xml", "mscclpp": "ar.json", "chakra": "ar.et", "tacos": "ar.tacos"}


def pairs(schedule, folder):
    """Convert from each format to each (read, verify, write); the slowest first."""
    options = {"mscclpp": {"threadblocks": 512}}
    network, size = schedule.topology, schedule.collective.size_bytes
    there = folder / "there"
    there.mkdir(exist_ok=True)

    def convert(source, target):
        algorithm = tacos.load(folder / NAMES[source])
        tacos.verify(algorithm).raise_if_failed()
        more = dict(options.get(target, {}))
        if isinstance(algorithm, tacos.Program) and target == "tacos":
            algorithm = tacos.lift(algorithm, network, size)
        if isinstance(algorithm, tacos.Program) and target == "chakra":
            more |= {"topology": network, "size": size}
        tacos.save(algorithm, there / NAMES[target], **more)

    for name, file in NAMES.items():
        tacos.save(schedule, folder / file, **options.get(name, {}))
    seconds = {
        f"{source} to {target}": timed(lambda s=source, t=target: convert(s, t))[0]
        for source in NAMES
        for target in NAMES
    }
    slowest = sorted(seconds, key=seconds.__getitem__, reverse=True)
    return {"converted_s": {name: round(seconds[name], 2) for name in slowest}}


def graphml(folder):
    """A million links as GraphML, read."""
    network = tacos.topology.torus(500, 500)
    path = folder / "net.graphml"
    tacos.save(network, path)
    read_s, found = timed(lambda: tacos.load(path))
    return {
        "format": "graphml",
        "links": found.links,
        "bytes": path.stat().st_size,
        "read_s": round(read_s, 2),
    }


def main():
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for spec in ("torus:8x16", "ring:128"):
            topology = tacos.topology.parse(spec)
            goal = tacos.collective.all_reduce(topology, "64MB", chunks=1)
            engine = "ring" if spec.startswith("ring") else "auto"
            schedule = tacos.synthesize(topology, goal, engine=engine)
            measures = (
                measure(schedule, Path(folder)) for measure in (msccl, mscclpp, chakra, pairs)
            )
            rows += [{"network": spec} | row for row in measures]
        topology = tacos.topology.torus(32, 32)
        goal = tacos.collective.all_gather(topology, "64MB", chunks=1)
        schedule = tacos.synthesize(topology, goal)
        rows.append({"network": "torus:32x32"} | chakra(schedule, Path(folder)))
        rows.append({"network": "torus:500x500"} | graphml(Path(folder)))
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
