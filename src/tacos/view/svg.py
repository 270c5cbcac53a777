"""Shared by all pictures: colours, escaped text, and atomic writes."""

from __future__ import annotations

import re
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tacos._support.files import replacing
from tacos.errors import TacosError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

__all__ = [
    "COLOURS",
    "GREY",
    "INK",
    "MARGIN",
    "PAPER",
    "checked",
    "darkened",
    "document",
    "escaped",
    "save",
    "text",
]

# Okabe and Ito's palette, which people with any colour vision can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK, GREY, PAPER = "#1f2933", "#616e7c", "#ffffff"
MARGIN = 28.0
_FONT = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def escaped(words: str) -> str:
    """Escape a text for XML, and replace control characters, which XML does not allow.

    >>> escaped("a<b")
    'a&lt;b'
    """
    return escape(_NOT_XML.sub("\ufffd", words), quote=False).replace('"', "&quot;")


def text(x: float, y: float, words: str, *, size: float, more: str = "") -> str:
    """Return a line of text whose baseline starts at (x, y); `more` has further attributes.

    >>> text(1, 2, "hello", size=12)
    '<text x="1.0" y="2.0" font-size="12.0" >hello</text>'
    """
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:.1f}" {more}>{escaped(words)}</text>'


def document(shapes: Iterable[str], width: float, height: float, title: str) -> str:
    """Return a picture on a white background; the title is for screen readers.

    >>> document([], 30, 20, "nothing").splitlines()[1]
    '<title>nothing</title>'
    """
    size = f'width="{width:.0f}" height="{height:.0f}"'
    box = f'viewBox="0 0 {width:.0f} {height:.0f}"'
    style = f'font-family="{_FONT}" fill="{INK}" role="img"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} {style}>',
        f"<title>{escaped(title)}</title>",
        f'<rect width="100%" height="100%" fill="{PAPER}"/>',
        *shapes,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


_DARK = {
    PAPER: "#131416",
    INK: "#e6e9ed",
    GREY: "#9fb0c0",
    "#f0f2f5": "#23282f",
    "#e4e7eb": "#2c333b",
    "#9aa5b1": "#5b6673",
    "#f5f7fa": "#1b2027",
    "#cbd2d9": "#3a444f",
    "#e4eef6": "#24384a",
    "#3e4c59": "#93a4b5",
    "#cccccc": "#4a545f",
    "#333333": "#c9d2da",
    "#888888": "#93a4b5",
    "white": "#131416",
    "#0072B2": "#5ab4ee",
    "#D55E00": "#ff9350",
    "#009E73": "#3ecf9f",
    "#CC79A7": "#e7a3c8",
    "#E69F00": "#f2bd45",
    "#56B4E9": "#8fd0f5",
}
"""Colours of pictures on a white background, and their replacements on a dark one."""


def darkened(picture: str) -> str:
    """Return the same picture for a dark background.

    >>> darkened(document([], 30, 20, "nothing")).splitlines()[2]
    '<rect width="100%" height="100%" fill="#131416"/>'
    """
    known = {light.lower(): dark for light, dark in _DARK.items()}

    def other(match: re.Match[str]) -> str:
        return f'"{known.get(match[1].lower(), match[1])}"'

    return re.sub(r'"(#[0-9a-fA-F]{6}|white)"', other, picture)


def checked(path: str | os.PathLike[str], *, what: str = "path", also: Sequence[str] = ()) -> Path:
    """Return the path if a picture can be written to it; `what` names the argument in messages.

    `also` are further endings that the caller writes itself.

    Raises:
        ValueError: The name does not end in .svg, .png or .pdf.
        TacosError: It ends in .png or .pdf, and the package for this format is not installed.

    >>> checked("ring.svg").name
    'ring.svg'
    """
    target = Path(path)
    ending = target.suffix.lower()
    known = (".svg", *_EXTRAS, *also)
    if ending not in known:
        allowed = f"{', '.join(known[:-1])} or {known[-1]}"
        raise ValueError(f'{what} must end in {allowed}; got "{target}"')
    package, extra = _EXTRAS.get(ending, ("", ""))
    if package and find_spec(package) is None:
        raise TacosError(
            f"{ending[1:].upper()} pictures need the extra {extra}: pip install 'tacos-ccl[{extra}]'"
        )
    return target


_EXTRAS = {".png": ("resvg_py", "plot"), ".pdf": ("svglib", "pdf")}
"""By ending: the package that draws, and the extra that installs it."""


def save(svg: str, path: str | os.PathLike[str]) -> None:
    """Write a picture as SVG, as PNG at twice its size (extra ``plot``), or as PDF (extra ``pdf``).

    >>> save(document([], 30, 20, "nothing"), "/dev/null")
    Traceback (most recent call last):
        ...
    ValueError: path must end in .svg, .png or .pdf; got "/dev/null"
    """
    target = checked(path)
    data = svg.encode()
    if target.suffix.lower() == ".png":
        import resvg_py

        data = bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=2))
    elif target.suffix.lower() == ".pdf":
        data = _pdf(svg)
    with replacing(target) as out:
        out.write(data)


def _pdf(svg: str) -> bytes:
    """Convert to PDF with vectors and text; the same picture gives the same bytes."""
    from io import StringIO

    from reportlab import rl_config
    from reportlab.graphics import renderPDF
    from svglib.svglib import svg2rlg

    rl_config.invariant = 1  # no date in the file
    return bytes(renderPDF.drawToString(svg2rlg(StringIO(svg))))
