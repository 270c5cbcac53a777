"""A job of an optimizer service: its parameters, its optimizer, and its workers."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from tacos._core import HubGroup
from tacos.errors import check_keywords, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["MODES", "OPTIMIZERS", "Hyperparameters", "Job", "optimizer"]

MODES = ("sync", "stale", "async")
"""How workers are synchronized: in every step, within a number of steps, or not at all."""


class Hyperparameters(TypedDict, total=False):
    """Hyperparameters of a parameter group, as torch.optim names them."""

    lr: float
    momentum: float
    dampening: float
    weight_decay: float
    nesterov: bool
    maximize: bool
    betas: tuple[float, float]
    eps: float
    amsgrad: bool


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {
        "lr": 1e-3, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0,
        "nesterov": False, "maximize": False,
    },
    "adam": {
        "lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0,
        "amsgrad": False, "maximize": False,
    },
    "adamw": {
        "lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2,
        "amsgrad": False, "maximize": False,
    },
}  # fmt: skip
"""The optimizers by name, with the hyperparameters and defaults of torch.optim."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def optimizer(name: str, **given: Unpack[Hyperparameters]) -> dict[str, Any]:
    """Complete the hyperparameters of a parameter group; ``nesterov`` is SGD with Nesterov momentum 0.9.

    Raises:
        ValueError: The optimizer or a value is wrong.

    >>> optimizer("sgd", lr=0.1)["momentum"]
    0.0
    >>> optimizer("nesterov", lr=0.1)["nesterov"]
    True
    """
    if name == "nesterov":
        name, given = "sgd", Hyperparameters(**{"momentum": 0.9, **given, "nesterov": True})
    if name not in OPTIMIZERS:
        close = nearest(name, [*OPTIMIZERS, "nesterov"])
        hint = f"did you mean {close!r}?" if close else "use sgd, nesterov, adam or adamw"
        raise ValueError(f"unknown optimizer {name!r}; {hint}")
    check_keywords(name, given, OPTIMIZERS[name])
    group: dict[str, Any] = OPTIMIZERS[name] | dict(given)
    for key in ("lr", "momentum", "weight_decay", "eps"):
        value = group.get(key, 0.0)
        if not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise ValueError(f"{key} must be a number of at least 0; got {value!r}")
        if key in group:
            group[key] = float(value)
    if "betas" in group:
        betas = tuple(group["betas"])
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be two numbers from 0 to below 1; got {group['betas']!r}")
        group["betas"] = betas
    if group.get("nesterov") and (group["momentum"] <= 0 or group["dampening"] != 0):
        raise ValueError("nesterov needs a momentum above 0 and no dampening")
    return group


@dataclass(frozen=True)
class Job:
    """A job: parameters and their optimizer, and how workers take part.

    Args:
        name: Name of the session; letters, digits, dots, underscores and dashes.
        keys: Parameters by name, with their numbers of elements.
        optimizer: ``"sgd"``, ``"adam"`` or ``"adamw"``.
        groups: Hyperparameters of each parameter group, see :func:`optimizer`.
        group_of: The group of each parameter; by default all are in the first.
        workers: Number of workers that begin together.
        mode: One of :data:`MODES`.
        staleness: In mode ``"stale"``, the number of steps that a worker may be ahead of the slowest.
        deterministic: Sum in the order of ranks, whatever order gradients arrive in.
        average: Divide sums by the number of workers that contributed.
        elastic: Complete a step without workers that are lost; otherwise the job fails.
        timeout_s: Seconds that a step waits for a worker after another has pushed.

    >>> job = Job("mnist", {"weight": 7840, "bias": 10}, "sgd", [optimizer("sgd", lr=0.1)], workers=2)
    >>> Job.from_json(job.to_json()) == job
    True
    """

    name: str
    keys: Mapping[str, int]
    optimizer: str
    groups: Sequence[Mapping[str, Any]]
    group_of: Sequence[int] = field(default_factory=tuple)
    workers: int = 1
    mode: str = "sync"
    staleness: int = 0
    deterministic: bool = False
    average: bool = True
    elastic: bool = False
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(str(self.name)):
            raise ValueError(
                f"session name {self.name!r} must be 1 to 64 letters, digits, '.', '_' or '-'"
            )
        if not self.keys:
            raise ValueError("keys is empty; a job needs at least one parameter")
        for key, size in self.keys.items():
            if type(size) is not int or not 0 < size < 2**31:
                raise ValueError(f"size of parameter {key!r} must be 1 to 2^31-1; got {size!r}")
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}; got {self.mode!r}")
        if type(self.workers) is not int or not 1 <= self.workers <= 256:
            raise ValueError(f"workers must be 1 to 256; got {self.workers!r}")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s must be positive; got {self.timeout_s!r}")
        if self.staleness < 0 or (self.staleness and self.mode != "stale"):
            raise ValueError(f"staleness must be 0 unless mode is 'stale'; got {self.staleness!r}")
        groups = [optimizer(self.optimizer, **group) for group in self.groups]
        if not groups:
            raise ValueError("groups is empty; a job needs at least one parameter group")
        group_of = list(self.group_of) or [0] * len(self.keys)
        if len(group_of) != len(self.keys) or not set(group_of) <= set(range(len(groups))):
            raise ValueError("group_of must give one of the groups for each parameter")
        object.__setattr__(self, "keys", dict(self.keys))
        object.__setattr__(self, "groups", groups)
        object.__setattr__(self, "group_of", group_of)

    @property
    def states(self) -> int:
        """Number of arrays of optimizer state."""
        if self.optimizer == "sgd":
            return int(any(group["momentum"] for group in self.groups))
        return 3 if any(group["amsgrad"] for group in self.groups) else 2

    @property
    def memory_bytes(self) -> int:
        """Memory that the job takes in the service: weights, sums, state, and buffered contributions."""
        elements = sum(self.keys.values())
        copies = 2 + self.states + (self.workers if self.deterministic else 0)
        return elements * (4 * copies + 2)

    def rates(self) -> list[HubGroup]:
        """Return the groups in the core's form."""
        rows = []
        for group in self.groups:
            fields = dict(group)
            if "betas" in fields:
                fields["beta1"], fields["beta2"] = fields.pop("betas")
            rows.append(HubGroup(**fields))
        return rows

    def to_json(self) -> dict[str, Any]:
        """Return the job as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Return the job that :meth:`to_json` described.

        Raises:
            ValueError: A field is missing, unknown or wrong.
        """
        if not isinstance(data, dict):
            raise ValueError("a session must be a JSON object")  # noqa: TRY004, it is user data
        try:
            return cls(**data)
        except (TypeError, AttributeError) as error:
            raise ValueError(f"wrong session: {error}") from None
