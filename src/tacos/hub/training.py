"""Training loops of torch with an optimizer service: gradients leave while the backward pass runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    hint = "tacos.hub.Optimizer and tacos.hub.DiLoCo need torch: pip install 'tacos-ccl[torch]'"
    raise ModuleNotFoundError(hint, name="torch") from None

from tacos.hub.job import OPTIMIZERS, Job
from tacos.hub.job import optimizer as completed
from tacos.hub.worker import Worker, connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


__all__ = ["DiLoCo", "Optimizer"]

_TORCH: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
_STATES = {
    "sgd": ("momentum_buffer",),
    "adam": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    "adamw": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
}


def _kind_of(optimizer: torch.optim.Optimizer) -> str:
    """Return the name of a torch optimizer in the service."""
    if isinstance(optimizer, torch.optim.AdamW):
        return "adamw"
    if type(optimizer) is torch.optim.Adam:
        coupled = {not group.get("decoupled_weight_decay") for group in optimizer.param_groups}
        if len(coupled) == 1:
            return "adam" if coupled.pop() else "adamw"
    if type(optimizer) is torch.optim.SGD:
        return "sgd"
    raise ValueError(
        f"the service does not have {type(optimizer).__name__}; use torch.optim.SGD, Adam or AdamW"
    )


def _group(kind: str, group: dict[str, Any]) -> dict[str, Any]:
    if group.get("differentiable"):
        raise ValueError("an optimizer with differentiable=True cannot run in the service")
    given = {key: group[key] for key in OPTIMIZERS[kind]}
    return completed(kind, **{key: _plain(value) for key, value in given.items()})


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


class Optimizer(torch.optim.Optimizer):
    """A torch optimizer whose sums and updates happen in an optimizer service.

    It takes the optimizer's place in a training loop: ``loss.backward()`` pushes gradients as they become ready, and
    ``step()`` waits for the new weights. Learning-rate schedulers work on it as they do on the optimizer.

    Args:
        optimizer: A ``torch.optim.SGD``, ``Adam`` or ``AdamW`` over the parameters, or its configuration: a name, or
            a dictionary with ``name`` and hyperparameters.
        named_parameters: ``model.named_parameters()``.
        hub: Address of the service, see :class:`tacos.hub.worker.Control`. Default: ``TACOS_HUB``.
        session: Name of the job.
        workers: Number of workers. Default: ``WORLD_SIZE``, or 1.
        rank: This worker's rank. Default: ``RANK``, or the first that is free.
        overlap: Push during the backward pass. Without it, ``step()`` pushes, so that gradients can be clipped before.
        accumulate: Backward passes per step.
        wire: Format of gradients and weights on the wire: ``float32``, ``bfloat16`` or ``float16``.
        share, token, ca: See :func:`tacos.hub.worker.connect`.
        mode, staleness, deterministic, average, elastic, timeout_s: See :class:`tacos.hub.job.Job`.

    Attributes:
        worker: The connection.
        steps_done: Steps that the job has completed: where to continue in the data after resuming.

    Raises:
        ValueError: The optimizer or a parameter cannot be served.
        CommunicationError: The service cannot be reached, refuses, or has lost a worker that it needs.

    >>> from tacos.hub import Server
    >>> model = torch.nn.Linear(4, 2)
    >>> with Server() as server:
    ...     with Optimizer({"name": "sgd", "lr": 0.1}, model.named_parameters(), hub=server.address) as opt:
    ...         model(torch.ones(1, 4)).sum().backward()
    ...         opt.step()
    ...         opt.steps_done
    1
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | str | dict[str, Any],
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        *,
        hub: str | None = None,
        session: str = "default",
        workers: int | None = None,
        rank: int | None = None,
        name: str | None = None,
        overlap: bool = True,
        accumulate: int = 1,
        wire: str = "float32",
        share: bool | None = None,
        token: str | None = None,
        ca: Path | None = None,
        mode: str = "sync",
        staleness: int = 0,
        deterministic: bool = False,
        average: bool = True,
        elastic: bool = False,
        timeout_s: float = 60.0,
    ) -> None:
        named = {key: each for key, each in named_parameters if each.requires_grad}
        if accumulate < 1:
            raise ValueError(f"accumulate must be at least 1; got {accumulate}")
        if not isinstance(optimizer, torch.optim.Optimizer):
            optimizer = _made(optimizer, list(named.values()))
        self._torch = optimizer
        kind = _kind_of(optimizer)
        names = {id(each): key for key, each in named.items()}
        self._parameters: list[torch.nn.Parameter] = []
        keys, group_of = {}, []
        for number, group in enumerate(optimizer.param_groups):
            for each in group["params"]:
                if id(each) not in names:
                    raise ValueError("the optimizer has a parameter that named_parameters lacks")
                if not each.is_floating_point() or each.is_sparse:
                    raise ValueError(f"parameter {names[id(each)]!r} is not dense floating point")
                keys[names[id(each)]] = each.numel()
                group_of.append(number)
                self._parameters.append(each)
        self._names = list(keys)
        self._group_of = group_of
        self._places = {id(each): place for place, each in enumerate(self._parameters)}
        self._settings = [_group(kind, group) for group in optimizer.param_groups]
        described = Job(
            session, keys, kind, self._settings, group_of,
            workers=int(os.environ.get("WORLD_SIZE", "1")) if workers is None else workers,
            mode=mode, staleness=staleness, deterministic=deterministic, average=average,
            elastic=elastic, timeout_s=timeout_s,
        )  # fmt: skip
        self._overlap, self._accumulate = overlap, accumulate
        self._passes = [0] * len(self._parameters)
        self._landing = [
            torch.empty(each.numel(), dtype=torch.float32) for each in self._parameters
        ]
        self._stamps: dict[int, int] = {}
        self._sources: dict[int, torch.Tensor] = {}
        super().__init__(optimizer.param_groups, optimizer.defaults)
        if rank is None and "RANK" in os.environ:
            rank = int(os.environ["RANK"])
        self.worker: Worker = connect(
            described, hub, rank=rank, name=name, wire=wire, share=share, token=token, ca=ca
        )
        self.steps_done = self.worker.step
        self._loads = 0
        self._hooks = []
        try:
            self._begin()
        except BaseException:
            self.worker.close()
            raise
        if overlap:
            self._hooks = [
                each.register_post_accumulate_grad_hook(self._pushing(place))
                for place, each in enumerate(self._parameters)
            ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.leave()
        else:
            self.close()

    def _begin(self) -> None:
        """Set the first weights, or pull those of the job."""
        if self.worker.initialize:
            for place, each in enumerate(self._parameters):
                self.worker.put(self._names[place], _host(each).numpy(), updates=0)
        self._pull_weights()

    def _pull_weights(self) -> None:
        stamps = [
            self.worker.pull(name, landing.numpy())
            for name, landing in zip(self._names, self._landing, strict=True)
        ]
        self.worker.wait(*stamps)
        self._land(range(len(self._parameters)))

    @torch.no_grad()
    def _land(self, places: Iterable[int]) -> None:
        for place in places:
            each = self._parameters[place]
            each.copy_(self._landing[place].view(each.shape))

    def _pushing(self, place: int) -> Callable[[torch.nn.Parameter], None]:
        def push(_: torch.nn.Parameter) -> None:
            self._passes[place] += 1
            if self._passes[place] == self._accumulate:
                self._push(place)

        return push

    def _push(self, place: int) -> None:
        if place in self._stamps:
            raise RuntimeError(
                f"parameter {self._names[place]!r} got a second gradient before step(); "
                "set accumulate= to the number of backward passes per step"
            )
        gradient = self._parameters[place].grad
        source = 0
        if gradient is not None:
            if gradient.is_sparse:
                raise RuntimeError(f"gradient of {self._names[place]!r} is sparse")
            held = self._sources[place] = _host(gradient)
            source = held.data_ptr()
        rate = float(_plain(self.param_groups[self._group_of[place]]["lr"]))
        self._stamps[place] = self.worker.push_at(
            place, source, self._landing[place].data_ptr(), rate
        )

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Push what has not been pushed, wait for the new weights, and store them in the parameters."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_groups()
        for place in range(len(self._parameters)):
            if place not in self._stamps:
                self._push(place)
        try:
            for place, stamp in self._stamps.items():
                self.worker.wait(stamp)
                self._land([place])
        finally:
            self._stamps.clear()
            self._sources.clear()
            self._passes = [0] * len(self._parameters)
        self.steps_done += 1
        return loss

    def _check_groups(self) -> None:
        """Refuse changes of hyperparameters other than the learning rate, which the service has from the beginning."""
        for number, (group, before) in enumerate(
            zip(self.param_groups, self._settings, strict=True)
        ):
            for key, value in before.items():
                if key != "lr" and _plain(group[key]) != value:
                    raise ValueError(
                        f"{key} of parameter group {number} was {value} when the session was opened, and "
                        f"is {group[key]}; only lr can change"
                    )

    def state_dict(self) -> dict[str, Any]:
        """Return the state in torch's format, which the torch optimizer can load. Not during a step."""
        kind, job = self.worker.job.optimizer, self.worker.job
        for place, each in enumerate(self._parameters):
            key = self._names[place]
            count = self.worker.updates(key)
            group = job.groups[job.group_of[place]]
            arrays = _arrays(kind, group)
            if count == 0 or not arrays:
                self._torch.state.pop(each, None)
                continue
            state: dict[str, Any] = {}
            if kind != "sgd":
                state["step"] = torch.tensor(float(count))
            for slot, name in enumerate(arrays, 1):
                values = torch.empty(each.numel(), dtype=torch.float32)
                self.worker.wait(self.worker.pull(key, values.numpy(), state=slot))
                state[name] = values.view(each.shape)
            self._torch.state[each] = state
        found: dict[str, Any] = self._torch.state_dict()
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state in torch's format, and the parameters' present values, on all workers together."""
        self._torch.load_state_dict(state_dict)
        for group, loaded in zip(self.param_groups, self._torch.param_groups, strict=True):
            group.update({key: value for key, value in loaded.items() if key != "params"})
        self._check_groups()
        self._loads += 1
        self.worker.meet(f"before load {self._loads} at {self.steps_done}")
        if self.worker.rank == 0:
            self._put_all()
        self.worker.meet(f"after load {self._loads} at {self.steps_done}")
        self._pull_weights()

    def _put_all(self) -> None:
        job = self.worker.job
        for place, each in enumerate(self._parameters):
            key, state = self._names[place], self._torch.state.get(each, {})
            names = _arrays(job.optimizer, job.groups[job.group_of[place]])
            # For SGD, torch does not count updates; only whether there is momentum matters.
            count = int(state["step"]) if "step" in state else int(bool(state))
            self.worker.put(key, _host(each).numpy(), updates=count)
            for slot, name in enumerate(names, 1):
                values = state.get(name)
                held = torch.zeros(each.numel()) if values is None else _host(values)
                self.worker.put(key, held.numpy(), state=slot)

    def leave(self) -> None:
        """Leave the job between steps; the other workers continue."""
        self._unhook()
        self.worker.leave()

    def close(self) -> None:
        """Close the connection; the service treats the worker as lost."""
        self._unhook()
        self.worker.close()

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def _arrays(kind: str, group: Any) -> tuple[str, ...]:
    """Return torch's names for the state of a group, in the order of the service."""
    if kind == "sgd":
        return _STATES[kind] if group["momentum"] else ()
    return _STATES[kind] if group["amsgrad"] else _STATES[kind][:2]


def _host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values as contiguous float32 in host memory, without a copy if possible."""
    return tensor.detach().to("cpu", torch.float32).contiguous().view(-1)


def _made(config: str | dict[str, Any], parameters: list[Any]) -> torch.optim.Optimizer:
    if isinstance(config, str):
        config = {"name": config}
    given = dict(config)
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise ValueError("the configuration of an optimizer needs its name, such as 'sgd'")  # noqa: TRY004
    group = completed(name, **given)
    kind = "sgd" if name == "nesterov" else name
    return _TORCH[kind](parameters, **group)


class Participation(TypedDict, total=False):
    """The keywords of :class:`Optimizer` that say which job a worker takes part in, and how."""

    hub: str | None
    session: str
    workers: int | None
    rank: int | None
    name: str | None
    accumulate: int
    wire: str
    share: bool | None
    token: str | None
    ca: Path | None
    mode: str
    staleness: int
    deterministic: bool
    average: bool
    elastic: bool
    timeout_s: float


class DiLoCo:
    """Local steps of a torch optimizer, with an exchange through the service every `every` steps.

    The workers push the changes of their weights (pseudo-gradients); the service averages them and takes a step of the
    outer optimizer, and all workers continue from its result. Nothing is sent between exchanges.

    Args:
        inner: The torch optimizer of the local steps.
        named_parameters: ``model.named_parameters()``.
        every: Local steps between exchanges.
        outer: Configuration of the outer optimizer; by default Nesterov with learning rate 0.7 and momentum 0.9.
        options: See :class:`Optimizer`.

    >>> from tacos.hub import Server
    >>> model = torch.nn.Linear(2, 1)
    >>> inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    >>> with Server() as server, DiLoCo(inner, model.named_parameters(), every=2, hub=server.address) as opt:
    ...     for _ in range(4):
    ...         opt.zero_grad()
    ...         model(torch.ones(1, 2)).sum().backward()
    ...         opt.step()
    ...     opt.exchanges
    2
    """

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        *,
        every: int,
        outer: str | dict[str, Any] | None = None,
        **options: Unpack[Participation],
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1; got {every}")
        named = [(key, each) for key, each in named_parameters if each.requires_grad]
        self.inner, self.every = inner, every
        self._local = [each for _, each in named]
        self._shared = [
            torch.nn.Parameter(each.detach().to("cpu", torch.float32).clone())
            for each in self._local
        ]
        config = outer or {"name": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}
        pairs = [(key, shared) for (key, _), shared in zip(named, self._shared, strict=True)]
        self.outer = Optimizer(config, pairs, overlap=False, **options)
        self.steps_done = self.outer.steps_done * every
        self._adopt()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.outer.leave()
        else:
            self.outer.close()

    @property
    def exchanges(self) -> int:
        """Steps of the outer optimizer."""
        return self.outer.steps_done

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of the inner optimizer."""
        groups: list[dict[str, Any]] = self.inner.param_groups
        return groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients."""
        self.inner.zero_grad(set_to_none)

    @torch.no_grad()
    def _adopt(self) -> None:
        for local, shared in zip(self._local, self._shared, strict=True):
            local.copy_(shared)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take a local step, and exchange if it is time."""
        loss: float | None = self.inner.step() if closure is None else self.inner.step(closure)
        self.steps_done += 1
        if self.steps_done % self.every == 0:
            for local, shared in zip(self._local, self._shared, strict=True):
                shared.grad = shared.detach() - local.detach().to("cpu", torch.float32)
            self.outer.step()
            self._adopt()
        return loss
