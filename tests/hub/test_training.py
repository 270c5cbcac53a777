"""Training through a hub gives, step by step, what torch.optim computes from the mean of the workers' gradients."""

from __future__ import annotations

import importlib.util
import inspect
import threading
from contextlib import ExitStack

import pytest

from tacos.errors import CommunicationError
from tacos.hub import Server
from tests.support.conditions import PATIENCE_S

if importlib.util.find_spec("torch") is None:
    pytest.skip(
        "torch is not installed: make torch, or pip install 'tacos-ccl[torch]'",
        allow_module_level=True,
    )

pytestmark = [pytest.mark.unsanitized, pytest.mark.xdist_group("torch")]  # torch is imported once

SEEDED = threading.Lock()
RULES = {
    "sgd": ("SGD", {"lr": 0.1}),
    "momentum": ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    "nesterov": ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "maximize": ("SGD", {"lr": 0.01, "momentum": 0.5, "maximize": True}),
    "adam": ("Adam", {"lr": 0.01, "weight_decay": 0.1}),
    "amsgrad": ("Adam", {"lr": 0.01, "amsgrad": True, "betas": (0.8, 0.9)}),
    "adamw": ("AdamW", {"lr": 0.01, "weight_decay": 0.1}),
}


def model_of(seed=0):
    """More than one chunk of 8192 elements, an odd size, and a parameter without a gradient."""
    import torch

    with SEEDED:  # all threads share torch's seed
        torch.manual_seed(seed)
        layers = torch.nn.Linear(37, 301), torch.nn.Tanh(), torch.nn.Linear(301, 3)
    model = torch.nn.Sequential(*layers)
    model.register_parameter("unused", torch.nn.Parameter(torch.ones(5)))
    return model


def batch(rank, step):
    import torch

    source = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(8, 37, generator=source), torch.randn(8, 3, generator=source)


def loss_of(model, rank, step):
    inputs, targets = batch(rank, step)
    return ((model(inputs) - targets) ** 2).mean()


def gradients(model, rank, step):
    model.zero_grad()
    loss_of(model, rank, step).backward()
    return [None if each.grad is None else each.grad.clone() for each in model.parameters()]


def reference(rule, workers, steps, schedule=None):
    """One process: the mean of the gradients, summed in the order of ranks, and torch's optimizer."""
    import torch

    kind, options = RULES[rule]
    model = model_of()
    optimizer = getattr(torch.optim, kind)(model.parameters(), foreach=False, **options)
    for step in range(steps):
        rows = [gradients(model, rank, step) for rank in range(workers)]
        for place, each in enumerate(model.parameters()):
            parts = [row[place] for row in rows]
            if parts[0] is not None:
                total = parts[0].clone()
                for part in parts[1:]:
                    total += part
                each.grad = total / workers
        if schedule:
            optimizer.param_groups[0]["lr"] = schedule(step)
        optimizer.step()
    return model, optimizer


def in_threads(count, work):
    """Runs work(rank) in threads; returns the results, or raises the first error."""
    results: list = [None] * count
    errors: list[BaseException] = []

    def run(rank):
        try:
            results[rank] = work(rank)
        except BaseException as error:  # noqa: BLE001, raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    if errors:
        raise errors[0]
    return results


def train(address, rule, workers, steps, *, schedule=None, seed=0, **options):
    import torch

    from tacos.hub import Optimizer

    kind, settings = RULES[rule]

    def work(rank):
        model = model_of(seed + (rank if seed else 0))
        inner = getattr(torch.optim, kind)(model.parameters(), **settings)
        with Optimizer(
            inner, model.named_parameters(), hub=address, workers=workers, rank=rank, **options
        ) as optimizer:
            for step in range(optimizer.steps_done, steps):
                optimizer.zero_grad()
                if schedule:
                    optimizer.param_groups[0]["lr"] = schedule(step)
                loss_of(model, rank, step).backward()
                optimizer.step()
            state = optimizer.state_dict() if rank == 0 else None
            optimizer.worker.meet("end")
        return model, state

    return in_threads(workers, work)


@pytest.fixture(scope="module")
def server():
    with Server(cores=2, log=lambda _: None) as running:
        yield running


def same_bits(ours, theirs):
    import torch

    return all(
        torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)
    )


def close(ours, theirs, **tolerance):
    import torch

    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, **tolerance)


def slowly(*values):
    return [pytest.param(each, marks=pytest.mark.slow) for each in values]


@pytest.mark.parametrize("rule", ["nesterov", *slowly("sgd", "momentum", "maximize")])
@pytest.mark.parametrize("workers", [3, *slowly(2, 4, 5, 8)])
def test_deterministic_sgd_has_the_bits_of_torch(server, rule, workers):
    found = train(server.address, rule, workers, 5, deterministic=True, session=f"{rule}{workers}")
    expected, _ = reference(rule, workers, 5)
    for model, _ in found:
        assert same_bits(model, expected)


@pytest.mark.parametrize("rule", ["adamw", *slowly("adam", "amsgrad")])
@pytest.mark.parametrize("workers", [2, *slowly(8)])
@pytest.mark.parametrize("share", [True, *slowly(False)])
def test_adam_is_that_of_torch(server, rule, workers, share):
    found = train(server.address, rule, workers, 5, share=share, session=f"{rule}{workers}{share}")
    expected, _ = reference(rule, workers, 5)
    for model, _ in found:
        close(model, expected, rtol=2e-5, atol=2e-6)


def test_schedulers_change_the_rate_of_a_step(server):
    schedule = {0: 0.1, 1: 0.05, 2: 0.2}.get
    found = train(
        server.address, "nesterov", 2, 3, schedule=schedule, deterministic=True, session="rates"
    )
    expected, _ = reference("nesterov", 2, 3, schedule)
    assert same_bits(found[1][0], expected)


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["bfloat16", "float16"])
def test_half_formats_are_close(server, wire):
    found = train(server.address, "momentum", 2, 3, wire=wire, session=wire, share=False)
    expected, _ = reference("momentum", 2, 3)
    close(found[0][0], expected, rtol=0.02, atol=0.02)
    assert same_bits(found[0][0], found[1][0])


def test_workers_take_the_weights_of_the_first(server):
    """Each worker begins with its own weights; after a step all have the same."""
    found = train(server.address, "sgd", 2, 1, seed=5, session="seeds")
    assert same_bits(found[0][0], found[1][0])


@pytest.mark.parametrize("rule", ["adamw", *slowly("momentum")])
def test_the_state_is_in_torchs_format(server, rule):
    """torch's own optimizer loads it, and it is the state that torch would have."""
    import torch

    found = train(server.address, rule, 2, 3, deterministic=True, session=f"state-{rule}")
    model, optimizer = reference(rule, 2, 3)
    state, expected = found[0][1], optimizer.state_dict()
    kind, options = RULES[rule]
    getattr(torch.optim, kind)(model.parameters(), **options).load_state_dict(state)
    assert state["state"].keys() == expected["state"].keys()
    for number, entry in expected["state"].items():
        assert entry.keys() == state["state"][number].keys()
        for name, value in entry.items():
            torch.testing.assert_close(state["state"][number][name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", ["nesterov", *slowly("adamw")])
def test_training_goes_on_from_a_loaded_state(server, rule):
    import torch

    from tacos.hub import Optimizer

    kind, options = RULES[rule]
    half, before = reference(rule, 2, 2)
    expected, _ = reference(rule, 2, 4)

    def work(rank):
        model = model_of()
        model.load_state_dict(half.state_dict())
        inner = getattr(torch.optim, kind)(model.parameters(), **options)
        with Optimizer(
            inner, model.named_parameters(), hub=server.address, workers=2, rank=rank,
            deterministic=True, session=f"loaded-{rule}",
        ) as optimizer:  # fmt: skip
            optimizer.load_state_dict(before.state_dict())
            for step in range(2, 4):
                optimizer.zero_grad()
                loss_of(model, rank, step).backward()
                optimizer.step()
            optimizer.worker.meet("end")
        return model

    for model in in_threads(2, work):
        close(model, expected, rtol=2e-5, atol=2e-6)


def test_gradients_can_be_clipped_before_they_are_pushed(server):
    import torch

    from tacos.hub import Optimizer

    model, expected = model_of(), model_of()
    mine = torch.optim.SGD(expected.parameters(), lr=0.1)
    with Optimizer(
        "sgd", model.named_parameters(), hub=server.address, overlap=False, session="clipped"
    ) as optimizer:
        optimizer.param_groups[0]["lr"] = 0.1
        for each, opt in ((model, optimizer), (expected, mine)):
            loss_of(each, 0, 0).backward()
            torch.nn.utils.clip_grad_norm_(each.parameters(), 0.01)
            opt.step()
    close(model, expected)


def test_several_backward_passes_make_a_step(server):
    import torch

    from tacos.hub import Optimizer

    model, expected = model_of(), model_of()
    mine = torch.optim.SGD(expected.parameters(), lr=0.1)
    with Optimizer(
        {"name": "sgd", "lr": 0.1}, model.named_parameters(), hub=server.address, accumulate=2,
        session="accumulated",
    ) as optimizer:  # fmt: skip
        for each, opt in ((model, optimizer), (expected, mine)):
            loss_of(each, 0, 0).backward()
            loss_of(each, 0, 1).backward()
            opt.step()
        loss_of(model, 0, 2).backward()
        loss_of(model, 0, 3).backward()
        with pytest.raises(RuntimeError, match=r"second gradient|set accumulate"):
            optimizer._push(1)
    close(model, expected)


def test_diloco_is_local_steps_and_an_outer_step(server):
    """Two workers, three local steps each: the outer optimizer gets the mean of their changes."""
    import torch

    from tacos.hub import DiLoCo

    def work(rank):
        model = model_of()
        inner = torch.optim.AdamW(model.parameters(), lr=0.01)
        with DiLoCo(
            inner, model.named_parameters(), every=3, hub=server.address, workers=2, rank=rank,
            session="diloco", deterministic=True,
        ) as optimizer:  # fmt: skip
            for step in range(6):
                optimizer.zero_grad()
                loss_of(model, rank, step).backward()
                optimizer.step()
            assert optimizer.exchanges == 2
            optimizer.outer.worker.meet("end")
        return model

    found = in_threads(2, work)
    shared = [each.detach().clone().requires_grad_() for each in model_of().parameters()]
    outer = torch.optim.SGD(shared, lr=0.7, momentum=0.9, nesterov=True)
    locals_ = [model_of(), model_of()]
    inners = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in locals_]
    for step in range(6):
        for rank, (model, inner) in enumerate(zip(locals_, inners, strict=True)):
            inner.zero_grad()
            loss_of(model, rank, step).backward()
            inner.step()
        if step % 3 == 2:
            for place, each in enumerate(shared):
                moved = [each.detach() - list(m.parameters())[place].detach() for m in locals_]
                each.grad = (moved[0] + moved[1]) / 2
            outer.step()
            for model in locals_:
                for to, each in zip(model.parameters(), shared, strict=True):
                    to.data.copy_(each.detach())
    for model in found:
        close(model, locals_[0])


def test_a_wrong_optimizer_or_change_is_told(server):
    import torch

    from tacos.hub import Optimizer

    model = model_of()
    with pytest.raises(ValueError, match="does not have RMSprop"):
        Optimizer(torch.optim.RMSprop(model.parameters()), model.named_parameters())
    with pytest.raises(ValueError, match="did you mean 'adam'"):
        Optimizer("adm", model.named_parameters(), hub=server.address)
    with ExitStack() as stack:
        optimizer = stack.enter_context(
            Optimizer("adam", model.named_parameters(), hub=server.address, session="changed")
        )
        optimizer.param_groups[0]["eps"] = 1.0
        loss_of(model, 0, 0).backward()
        with pytest.raises(ValueError, match="eps of parameter group 0"):
            optimizer.step()
    with pytest.raises(CommunicationError, match="does not answer"):
        Optimizer("sgd", model.named_parameters(), hub="127.0.0.1:1")


def test_diloco_takes_the_keywords_of_its_optimizer():
    from tacos.hub.training import Optimizer, Participation

    own = inspect.signature(Optimizer).parameters.values()
    keywords = [one.name for one in own if one.kind is one.KEYWORD_ONLY and one.name != "overlap"]
    assert list(Participation.__annotations__) == keywords
