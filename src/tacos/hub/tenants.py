"""Tenants of an optimizer service: their tokens and quotas."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tacos import units
from tacos.errors import FormatError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Tenant", "Tenants"]

_SHORTEST_TOKEN = 16  # characters


@dataclass(frozen=True)
class Tenant:
    """A user of a service, whose jobs no other tenant sees."""

    name: str
    token: str = ""
    memory_bytes: int = 0
    """Memory limit of all its jobs; 0: none."""
    rate_Bps: int = 0
    """Limit of the bytes per second from all its workers; 0: none."""


class Tenants:
    """The tenants of a service. Without any, every client is the same tenant and needs no token.

    >>> found = Tenants([Tenant("alice", "correct horse battery")])
    >>> found.named("correct horse battery").name
    'alice'
    >>> found.named("wrong") is None, Tenants([]).named(None).name
    (True, 'default')
    """

    def __init__(self, tenants: list[Tenant]) -> None:
        names = [tenant.name for tenant in tenants]
        if len(set(names)) < len(names):
            raise ValueError(f"two tenants have the same name: {', '.join(sorted(names))}")
        self._tenants = tenants

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def number(self, tenant: Tenant) -> int:
        """Return the number by which the core knows a tenant."""
        return self._tenants.index(tenant) + 1 if tenant in self._tenants else 0

    def named(self, token: str | None) -> Tenant | None:
        """Return the tenant with this token, or None. Takes the same time whichever token is wrong."""
        if not self._tenants:
            return Tenant("default")
        found = None
        given = (token or "").encode()
        for tenant in self._tenants:
            if hmac.compare_digest(given, tenant.token.encode()):
                found = tenant
        return found

    @classmethod
    def load(cls, path: Path) -> Tenants:
        """Read a YAML or JSON file: names, each with ``token`` and optionally ``memory`` and ``rate``.

        Raises:
            FormatError: The message names the file, the tenant and the field.

        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "tenants.yaml"
        ...     _ = file.write_text("alice: {token: 0123456789abcdef, memory: 8GB, rate: 1GB/s}")
        ...     Tenants.load(file).named("0123456789abcdef").memory_bytes
        8000000000
        """
        import yaml

        try:
            data = yaml.safe_load(path.read_text())
        except OSError as error:
            raise FormatError(f"{path}: {error.strerror or error}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise FormatError(f"{path}: {' '.join(str(error).split())}") from None
        if not isinstance(data, dict) or not data:
            raise FormatError(f"{path}: expected a mapping of tenants to their tokens")
        return cls([_tenant(path, str(name), entry) for name, entry in data.items()])


def _tenant(path: Path, name: str, entry: Any) -> Tenant:
    if isinstance(entry, str):
        entry = {"token": entry}
    if not isinstance(entry, dict):
        raise FormatError(f"{path}: {name} must be a token or a mapping; got {entry!r}")
    if unknown := set(entry) - {"token", "memory", "rate"}:
        raise FormatError(f"{path}: {name} has an unknown field {min(unknown)!r}")
    token = str(entry.get("token", ""))
    if len(token) < _SHORTEST_TOKEN:
        raise FormatError(
            f"{path}: token of {name} must have at least {_SHORTEST_TOKEN} characters"
        )
    try:
        memory = units.size_bytes(entry["memory"], what="memory") if "memory" in entry else 0
        rate = units.bandwidth_Bps(entry["rate"], what="rate") if "rate" in entry else 0
    except ValueError as error:
        raise FormatError(f"{path}: {name}: {error}") from None
    return Tenant(name, token, memory, rate)
