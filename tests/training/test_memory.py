"""Memory: activations and states against the formulas and figures of Korthikanti et al., 2022."""

from __future__ import annotations

from statistics import mean

import pytest

import tacos
from tacos import training
from tacos.training import Parallelism
from tacos.training.devices import device
from tacos.training.memory import activation_bytes, over_capacity, parameters_of

# Model, GPUs, pp, vp, microbatch; GiB of parameters and optimizer, of activations without savings, and of activations
# with selective recomputation and sequence parallelism (figure 1).
FIGURE_1 = [
    ("gpt-22b", 8, 1, 1, 4, 45.56, 59.25, 9.56),
    ("gpt3-175b", 64, 8, 3, 1, 45.56, 66.84, 12.35),
    ("gpt-530b", 280, 35, 3, 1, 31.64, 114.0, 23.08),
    ("gpt-1t", 512, 64, 1, 1, 32.96, 131.25, 26.56),
]


def shares(model, tp, microbatch):
    """Activations of a layer with sequence parallelism, selective recomputation, both, and full recomputation.

    In percent of those without."""

    def of(recompute, sequence_parallel):
        parallel = Parallelism(
            tp=tp, microbatch=microbatch, recompute=recompute, sequence_parallel=sequence_parallel
        )
        return activation_bytes(model, parallel)

    whole = of("none", False)
    return [
        100 * of(*one) / whole
        for one in (("none", True), ("selective", False), ("selective", True), ("full", False))
    ]


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("gpt-22b", [66.84, 49.42, 16.18, 7.64]),
        ("gpt3-175b", [62.04, 56.53, 18.49, 8.71]),
        ("gpt-530b", [58.31, 62.04, 20.27, 9.42]),
        ("gpt-1t", [58.31, 62.04, 20.27, 9.42]),
    ],
)
def test_activation_shares_of_figure_7(name, published):
    found = shares(training.model(name), 8, 1)
    assert found == pytest.approx(published, rel=0.03)


def test_memory_of_figure_1():
    """Parameters and optimizer take 18 bytes per parameter; activations are those of the first stage."""
    errors = []
    for name, gpus, pp, vp, microbatch, states, without, measures in FIGURE_1:
        model = training.model(name)
        for recompute, sequence_parallel, activations in (
            ("none", False, without),
            ("selective", True, measures),
        ):
            parallel = Parallelism(
                tp=8, pp=pp, vp=vp, microbatch=microbatch, batch=8 * pp * microbatch, recompute=recompute,
                sequence_parallel=sequence_parallel,
            )  # fmt: skip
            found = training.step(
                model, parallel, tacos.topology.dgx_a100(gpus // 8), device="a100-80gb", dtype="fp16",
                software="megatron-2021", oversubscribe=True,
            ).memory  # fmt: skip
            held = found.parameters + found.gradients + found.optimizer
            errors += [
                abs(held / 2**30 / states - 1),
                abs(found.activations / 2**30 / activations - 1),
            ]
    assert mean(errors) < 0.06
    assert max(errors) < 0.12


def test_one_layer_by_hand():
    """s b h (10 + 24 / t + 5 a s / (h t)) for a plain GPT: s 32, b 2, h 64, a 4, t 2."""
    gpt = training.Transformer(layers=1, hidden=64, heads=4, ffn=256, vocabulary=100, sequence=32)
    parallel = Parallelism(tp=2, microbatch=2)
    by_hand = 32 * 2 * 64 * (10 + 24 / 2 + 5 * 4 * 32 / (64 * 2))
    assert activation_bytes(gpt, parallel) == by_hand


def test_stages_hold_all_parameters_together():
    """With an untied embedding, the stages of a pipeline and the NPUs of a group hold each parameter once."""
    model = training.model("mixtral-8x7b")
    parallel = Parallelism(tp=2, pp=4, dp=4, ep=4)
    parts = [parameters_of(model, parallel, stage) for stage in range(4)]
    held = sum(one.dense * 2 + one.experts * 2 * 4 for one in parts)
    assert held == pytest.approx(model.parameters)


@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b", "resnet50", "dlrm"])
def test_sharing_more_stores_less(model):
    topology = tacos.topology.dgx_h100(1, nvls=False)
    sizes = [
        training.step(
            training.model(model), Parallelism(dp=8, zero=zero), topology, oversubscribe=True
        ).memory_bytes
        for zero in (0, 1, 2)
    ]
    assert sizes[0] > sizes[1] > sizes[2]


def test_what_does_not_fit_is_refused_with_its_largest_terms():
    words = r"largest terms are \w+ [\d.]+ GB, \w+.* or accept it with --oversubscribe$"
    with pytest.raises(training.MemoryExceededError, match=words):
        training.step(
            training.model("llama3-70b"), Parallelism(dp=8), tacos.topology.dgx_h100(1, nvls=False)
        )


def test_what_fits_is_not_a_problem():
    small = training.step(
        training.model("mpt-125m"), Parallelism(dp=8), tacos.topology.dgx_h100(1, nvls=False)
    )
    assert over_capacity(small.memory, device("h100")) == ""
