"""Jobs of ``tests/support/torch_ranks.py`` that train: with DDP, FSDP and others, over our group and over gloo."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import ClassVar

import torch
import torch._dynamo  # imported by the first optimizer and the first profiler; here once, before ranks are forked
import torch.distributed as dist

from tests.support.conditions import until
from tests.support.torch_jobs import everybodys, gloo, variables_set


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def _trained(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        x = torch.randn(8, 32, generator=generator)
        optimizer.zero_grad()
        (model(x) - x).pow(2).mean().backward()
        optimizer.step()


def _parameters(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat(
        [
            one.detach().full_tensor().flatten()
            if hasattr(one, "full_tensor")
            else one.detach().flatten()
            for one in model.parameters()
        ]
    )


def ddp(steps: int = 5, exact: bool = False) -> None:
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    start = Model()
    ends = []
    for group in (None, gloo()):
        model = DistributedDataParallel(
            copy.deepcopy(start), process_group=group, bucket_cap_mb=0.005
        )
        _trained(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), steps)
        ends.append(_parameters(model))
    assert not torch.equal(ends[0], _parameters(start))
    if exact:
        assert torch.equal(*ends), f"largest difference {(ends[0] - ends[1]).abs().max()}"
    else:
        torch.testing.assert_close(*ends)
    everybody = torch.empty(dist.get_world_size() * ends[0].numel())
    dist.all_gather_into_tensor(everybody, ends[0], group=gloo())
    for other in everybody.split(ends[0].numel()):
        assert torch.equal(ends[0], other), "the replicas differ"


def through_a_switch(
    address: str, token: str, steps: int, gone: str = ""
) -> tuple[float, float, int, str]:
    """Train with sums through a switch and with gloo's; return both losses, the switch's sums, and why they ended.

    If there is a name of a file, the last quarter of the steps begins when the file exists.
    """
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    start = torch.nn.Sequential(torch.nn.Linear(32, 200), torch.nn.ReLU(), torch.nn.Linear(200, 32))
    with variables_set(TACOS_SWITCH=f"{address},least=1KB", TACOS_SWITCH_TOKEN=token):
        switched = dist.new_group()
    losses = []
    for group in (switched, gloo()):
        model = DistributedDataParallel(copy.deepcopy(start), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        _trained(model, optimizer, steps - steps // 4)
        until(lambda: not gone or Path(gone).exists(), "the switch has been ended")
        _trained(model, optimizer, steps // 4)
        x = torch.randn(256, 32, generator=torch.Generator().manual_seed(1))
        losses.append(float((model(x) - x).pow(2).mean()))
    sums = switched._tensors.switched
    values = torch.full((5000,), float(dist.get_rank()))
    values[3] = float("inf")
    dist.all_reduce(values, group=switched)
    assert torch.isinf(values[3])
    ranks = dist.get_world_size()
    assert (values[4:] == ranks * (ranks - 1) / 2).all(), "finite values beside inf are summed"
    dist.destroy_process_group(switched)
    return losses[0], losses[1], sums.sums, sums.ended


def chained_hook() -> None:
    """PowerSGD starts collectives in the callbacks of others."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    start = Model()
    ends = []
    for group in (None, gloo()):
        model = DistributedDataParallel(copy.deepcopy(start), process_group=group)
        state = powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        _trained(model, torch.optim.SGD(model.parameters(), lr=0.1), 4)
        ends.append(_parameters(model))
    torch.testing.assert_close(*ends)


class _UntilReduced(torch.autograd.Function):  # type: ignore[misc]
    """Does nothing, but its backward ends only when the first bucket has been reduced."""

    works: ClassVar[list[dist.Work]] = []
    waits = False

    @staticmethod
    def forward(_ctx, x):
        return x.clone()

    @staticmethod
    def backward(_ctx, gradient):
        works = _UntilReduced.works
        if _UntilReduced.waits:
            until(lambda: works and works[0].is_completed(), "the first bucket has been reduced")
        return gradient


def overlap() -> None:
    """A bucket of the last layers is reduced before the gradients of the first exist."""
    from torch.nn.parallel import DistributedDataParallel

    def hook(_state, bucket):
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        _UntilReduced.works.append(work)
        return work.get_future().then(lambda future: future.value()[0])

    class Slow(Model):
        def forward(self, x):
            x = _UntilReduced.apply(self.layers[0](x))
            for layer in self.layers[1:]:
                x = layer(x)
            return x

    model = DistributedDataParallel(Slow(), bucket_cap_mb=0.005)
    model.register_comm_hook(None, hook)
    for waits in (False, True):  # the first pass has one bucket, from which DDP learns
        _UntilReduced.works.clear()
        _UntilReduced.waits = waits
        model(torch.ones(2, 32)).sum().backward()
    assert len(_UntilReduced.works) > 1


def fsdp() -> None:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    start = Model()
    ends = []
    for group in (dist.group.WORLD, gloo()):
        model = copy.deepcopy(start)
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        _trained(model, torch.optim.Adam(model.parameters(), lr=0.01), 4)
        ends.append(_parameters(model))
    torch.testing.assert_close(*ends)


def hybrid() -> None:
    """Shards within halves of the ranks and replicas across: groups that torch makes itself."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    start = Model()
    ends = []
    names = ("replicate", "shard")
    whole = init_device_mesh("cpu", (dist.get_world_size(),))
    halves = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=names)
    for mesh in (halves, whole):
        model = copy.deepcopy(start)
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        _trained(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
        ends.append(_parameters(model))
    torch.testing.assert_close(*ends)


def zero() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    start = Model()
    ends = []
    for group in (dist.group.WORLD, gloo()):
        model = DistributedDataParallel(copy.deepcopy(start), process_group=group)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.Adam, process_group=group, lr=0.01
        )
        _trained(model, optimizer, 4)
        ends.append(_parameters(model))
    torch.testing.assert_close(*ends)


def replicas(variables: dict[str, str], steps: int = 100) -> None:
    """Half-precision training with DDP: the replicas stay identical."""
    from torch.nn.parallel import DistributedDataParallel

    with variables_set(**variables):
        group = dist.new_group(backend="tacos")
    for dtype in (torch.bfloat16, torch.float16):
        torch.manual_seed(0)
        model = DistributedDataParallel(Model().to(dtype), process_group=group, bucket_cap_mb=0.005)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        generator = torch.Generator().manual_seed(dist.get_rank())
        for step in range(steps):
            x = torch.randn(8, 32, generator=generator).to(dtype)
            optimizer.zero_grad()
            (model(x) - x).pow(2).mean().backward()
            optimizer.step()
            if step % 20 == 19:
                ends = everybodys(_parameters(model))
                assert len(set(ends)) == 1, f"{dtype}: the replicas differ after {step + 1} steps"
    dist.destroy_process_group(group)
