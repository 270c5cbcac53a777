"""YAML and JSON text as plain values, and back.

Reading refuses features that would surprise people who write files by hand: duplicate keys, aliases, tags and second
documents. Words are read as in JSON, so a node may be called ``on`` or ``1:30``. Writing puts each entry of a long
list on its own line, for readers and for `diff`.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tacos._support.files import Location, location
from tacos.formats.source import text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["as_json", "as_yaml", "load"]

_DEEPEST = 16  # more than twice the depth of any field
_LONG = 12  # largest number of list entries on one line


def load(path: Location) -> object:
    """Return the value of a YAML or JSON file; a ValueError names the line and what is wrong.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "some.yaml")
    ...     _ = file.write_text("npus: [a, on, 3]")
    ...     load(file)
    {'npus': ['a', 'on', 3]}
    """
    suffix = location(path).suffix.lower()
    if suffix not in (".yaml", ".yml", ".json"):
        raise ValueError(f'the suffix must be .yaml, .yml or .json; got "{suffix}"')
    text = text_of(path)
    return _from_json(text) if suffix == ".json" else _from_yaml(text)


def _from_json(text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for key, value in pairs:
            if key in fields:
                raise ValueError(f'the key "{key}" appears twice')
            fields[key] = value
        return fields

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise ValueError("the file is nested too deeply") from None


def _from_yaml(text: str) -> Any:
    """Return the value of a YAML document of mappings, lists and plain values.

    It is built from the parser's events, which give the lines of duplicate keys and aliases.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _value_of(yaml.parse(text, Loader=loader))
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(f"{line}not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from None


def _value_of(events: Iterator[Any]) -> Any:
    stack: list[dict[Any, Any] | list[Any]] = []
    keys: list[Any] = []  # the pending key of each open collection
    no_key = object()
    documents: list[Any] = []
    for event in events:
        kind = type(event).__name__
        line = event.start_mark.line + 1
        value: Any
        if kind == "ScalarEvent":
            _refuse_tag(event.tag, line)
            value = _plain(event.value) if event.implicit[0] else event.value
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            _refuse_tag(event.tag, line)
            if len(stack) == _DEEPEST:
                raise ValueError(f"line {line}: nested too deeply")
            if stack and isinstance(stack[-1], dict) and keys[-1] is no_key:
                raise ValueError(f"line {line}: a key must be a word")
            stack.append({} if kind == "MappingStartEvent" else [])
            keys.append(no_key)
            continue
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            value = stack.pop()
            keys.pop()
        elif kind == "AliasEvent":
            raise ValueError(f"line {line}: aliases (*{event.anchor}) are not supported")
        elif kind == "DocumentStartEvent" and documents:
            raise ValueError(f"line {line}: a second document; there must be only one")
        else:
            continue
        if not stack:
            documents.append(value)
        elif isinstance(top := stack[-1], list):
            top.append(value)
        elif keys[-1] is no_key:
            if not isinstance(value, str):
                raise ValueError(f"line {line}: the key {value!r} must be a word")
            if value in top:
                raise ValueError(f'line {line}: the key "{value}" appears twice')
            keys[-1] = value
        else:
            top[keys[-1]] = value
            keys[-1] = no_key
    if not documents:
        raise ValueError("the file is empty")
    return documents[0]


def _refuse_tag(tag: str | None, line: int) -> None:
    if tag not in (None, "!"):
        raise ValueError(f"line {line}: tags ({tag}) are not supported")


_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}


@lru_cache(maxsize=1 << 16)
def _plain(text: str) -> Any:
    """Return an unquoted YAML value, read as JSON would read it."""
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return _WORDS.get(text.lower(), text)


def as_json(fields: dict[str, Any]) -> str:
    """Return a mapping as JSON, one line for each field and each entry of a long list.

    >>> print(as_json({"npus": 2, "links": [[0, 1]]}), end="")
    {
      "npus": 2,
      "links": [[0, 1]]
    }
    """

    def text(value: Any) -> str:
        if isinstance(value, list) and len(value) > _LONG:
            return "[\n    " + ",\n    ".join(map(_json, value)) + "\n  ]"
        return _json(value)

    return "{\n" + ",\n".join(f'  "{key}": {text(one)}' for key, one in fields.items()) + "\n}\n"


_json = json.JSONEncoder(ensure_ascii=False).encode


def as_yaml(fields: dict[str, Any]) -> str:
    """Return a mapping as YAML, one line for each field and each entry of a long list.

    >>> print(as_yaml({"npus": 2, "names": ["a", "on"]}), end="")
    npus: 2
    names: [a, "on"]
    """
    lines = []
    for key, value in fields.items():
        if isinstance(value, list) and len(value) > _LONG:
            lines += [f"{key}:", *(f"  - {_flow(one)}" for one in value)]
        else:
            lines.append(f"{key}: {_flow(value)}")
    return "\n".join(lines) + "\n"


_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_/-]*|[0-9][0-9.]*(?:[GM]B/s|[munp]s)")
_NOT_BARE = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}  # to some YAML readers
_UNPRINTABLE = re.compile(r"[\x7f-\xa0\u2028\u2029\ufeff\ufffe\uffff]")


def _flow(value: Any) -> str:
    """Return a value in YAML's one-line style."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return _quoted(value)


@lru_cache(maxsize=1 << 16)
def _quoted(text: str) -> str:
    if _BARE.fullmatch(text) and text.lower() not in _NOT_BARE:
        return text
    # A JSON string is a YAML string, except for characters that YAML wants escaped.
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", _json(text))
