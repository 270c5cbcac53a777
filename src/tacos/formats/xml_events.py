"""Read untrusted XML: elements in order, without fetching files or expanding entities; and write attributes.

The parser is expat of the standard library. A document type declaration is refused, and with it every way to declare an
entity: there are no entity bombs, and no file or address is opened. The memory for depth and attributes is proportional
to the size of the file.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from xml.parsers import expat

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Parser", "attribute", "parse", "root_of"]

_DEEPEST = 64
_PIECE = 1 << 16
_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}
)


class Parser:
    """Call ``start(name, attributes, line)``, ``text(characters)`` and ``end(name)`` in order.

    Names lose their namespace prefix. ``instruction(target, data)`` is called for processing
    instructions. Exceptions of the callbacks are passed through; errors in the text are ValueErrors.
    """

    def __init__(
        self,
        start: Callable[[str, dict[str, str], int], None],
        end: Callable[[str], object],
        text: Callable[[str], None] | None = None,
        instruction: Callable[[str, str], None] | None = None,
    ) -> None:
        parser = self._parser = expat.ParserCreate()
        parser.buffer_text = True
        depth = 0

        def on_start(name: str, attributes: dict[str, str]) -> None:
            nonlocal depth
            depth += 1
            if depth > _DEEPEST:
                raise ValueError(f"line {parser.CurrentLineNumber}: nested deeper than {_DEEPEST}")
            start(name.rpartition(":")[2], attributes, parser.CurrentLineNumber)

        def on_end(name: str) -> None:
            nonlocal depth
            depth -= 1
            end(name.rpartition(":")[2])

        def on_doctype(*_: object) -> None:
            line = parser.CurrentLineNumber
            raise ValueError(f"line {line}: a document type declaration is not supported")

        parser.StartElementHandler = on_start
        parser.EndElementHandler = on_end
        parser.StartDoctypeDeclHandler = on_doctype
        if text is not None:
            parser.CharacterDataHandler = text
        if instruction is not None:
            parser.ProcessingInstructionHandler = instruction

    def feed(self, data: bytes, *, last: bool = False) -> None:
        """Parse the next bytes of the text."""
        try:
            for at in range(0, len(data), _PIECE):
                self._parser.Parse(data[at : at + _PIECE], False)
            if last:
                self._parser.Parse(b"", True)
        except expat.ExpatError as error:
            what = expat.ErrorString(error.code)
            raise ValueError(f"line {error.lineno}: not XML: {what}") from None
        except LookupError as error:  # an encoding that Python does not know
            raise ValueError(f"line 1: not XML: {error}") from None


def parse(
    data: bytes,
    start: Callable[[str, dict[str, str], int], None],
    end: Callable[[str], object],
    text: Callable[[str], None] | None = None,
) -> None:
    """Parse a whole text; see :class:`Parser`.

    Raises:
        ValueError: The text is not XML, or has a document type declaration; the message gives the line.

    >>> parse(b"<a><b x='1'/></a>", lambda *element: print(*element), lambda name: None)
    a {} 1
    b {'x': '1'} 1
    >>> parse(b'<!DOCTYPE a [<!ENTITY e "e">]><a>&e;</a>', print, print)
    Traceback (most recent call last):
    ValueError: line 1: a document type declaration is not supported
    """
    Parser(start, end, text).feed(data, last=True)


def root_of(head: str) -> str:
    """Return the name of the first element of a text, or an empty string.

    >>> root_of("<?xml version='1.0'?><!-- a <b> --><system version='1'>")
    'system'
    """
    names: list[str] = []

    def first(name: str, _attributes: dict[str, str], _line: int) -> None:
        names.append(name)
        raise ValueError  # enough is known

    with suppress(ValueError):
        parse(head.encode("utf-8", "replace"), first, lambda _: None)
    return names[0] if names else ""


def attribute(value: str) -> str:
    """Return a text as the value of an attribute, in quotes that the text does not contain, if possible.

    The standard library's function for this is in a module that imports clients of HTTP and TLS.

    >>> print(attribute("a & b"), attribute('"a"'))
    "a &amp; b" '"a"'
    """
    text = value.translate(_ESCAPES)
    if '"' in text and "'" not in text:
        return f"'{text}'"
    return '"' + text.replace('"', "&quot;") + '"'
