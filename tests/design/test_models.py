"""Designs for training: one rank's job compared with the graph of all ranks, and finalists with training steps."""

from __future__ import annotations

import pytest

import tacos
from tacos import training
from tacos.cli import main
from tacos.design import Group, ModelJob, build, dimensions, from_workload, load_job, shapes
from tacos.errors import FormatError

pytestmark = pytest.mark.unsanitized

SMALL = ModelJob(training.model("mpt-125m"), training.Parallelism(tp=4, batch=16))


@pytest.mark.parametrize(
    "split", [{"tp": 4}, {"tp": 2, "zero": 3}, {"tp": 2, "overlap_gradients": True}]
)
@pytest.mark.parametrize("overlap", ["none", "background"])
def test_a_rank_stands_for_the_graph(split, overlap):
    """The job takes as long as the step's workload, which has all ranks, except for waits for the host."""
    parallel = training.Parallelism(batch=16, **split)
    found = training.step(SMALL.model, parallel, "switch:16", collectives="free")
    dims, speeds = dimensions("fc:4*switch:4"), [50e9, 10e9]
    all_ranks = from_workload(found.workload).timing(dims, overlap=overlap)
    job = ModelJob(SMALL.model, parallel)
    one = job.timing(dims, overlap=overlap)
    waits = job.on(16).compute_s - sum(
        int(found.workload.duration_ps[i]) / 1e12
        for i in range(found.workload.nodes)
        if found.workload.rank[i] == 0
    )
    assert waits >= 0
    assert job.on(16).compute_s == pytest.approx(found.time_s)
    assert one.seconds(speeds) == pytest.approx(all_ranks.seconds(speeds) + waits, rel=1e-6)


def test_stages_send_to_each_other():
    """Activations of a micro-batch of one sequence go to the stage four ranks away, and gradients come back."""
    job = ModelJob(SMALL.model, training.Parallelism(tp=4, pp=2, batch=8)).on(8)
    sends = [call for call in job.calls if call.collective == "send"]
    assert isinstance(SMALL.model, training.Transformer)
    size = 2 * SMALL.model.sequence * SMALL.model.hidden
    assert [(call.size_bytes, call.count) for call in sends if call.size_bytes == size] == [
        (size, 8)
    ]
    assert {call.group for call in sends} == {Group(2, 4)}


def test_finalists_are_training_steps(tmp_path, capsys):
    front = shapes(16, SMALL, budget="$20k", points=1, max_dims=2, finalists=2)
    for one in (*front.points, *front.runners_up):
        network = build(one.dims, one.bandwidths_Bps)
        for took, collectives in ((one.nccl_s, "nccl"), (one.synthesized_s, "auto")):
            step = training.step(SMALL.model, SMALL.parallel, network, collectives=collectives)
            assert took == step.time_s
        assert one.synthesized_s is not None
        assert one.nccl_s is not None
        assert one.synthesized_s <= one.nccl_s
        assert one.synthesized_s == pytest.approx(one.time_s, rel=0.1)
    file = tmp_path / "job.yaml"
    file.write_text("model: mpt-125m\nparallel: {tp: 4, batch: 16}\n")
    command = ["design", "shapes", "16", "--job", str(file), "--budget", "$20k", "--points", "1"]
    assert main([*command, "--max-dims", "2", "--finalists", "1"]) == 0
    printed = capsys.readouterr().out
    assert "with NCCL" in printed
    assert "synthesized" in printed


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("model: gpt9\n", "unknown model"),
        ("model: mpt-125m\nparallel: {ttp: 4}\n", r"parallel\.ttp is unknown; did you mean tp\?"),
        ("model: mpt-125m\nparallel: {tp: 0}\n", "tp must be a positive number; got 0"),
        ("model: mpt-125m\nparallel: {order: 5}\n", "parallel: order: expected str, got int"),
        ("model: mpt-125m\ndtype: fp5\n", "dtype is 'fp5'; a h100 has"),
        ("model: mpt-125m\nsteps: []\n", "steps"),
        ("name: none\n", "a job needs the field steps, .* or the field model"),
    ],
)
def test_bad_job_files(tmp_path, text, why):
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises((FormatError, tacos.errors.SpecError), match=why):
        load_job(file)


def test_a_split_that_does_not_fit():
    job = ModelJob(SMALL.model, training.Parallelism(tp=3))
    with pytest.raises(ValueError, match="3"):
        shapes(16, job, budget="$20k", points=1)
