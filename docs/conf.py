"""Sphinx configuration; `make docs` builds with -W -n, so a broken reference is an error."""

from __future__ import annotations

import copy
import sys
from importlib.metadata import version as version_of
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pictures

project = "TACOS"
copyright = "2026, The TACOS developers"
version = release = version_of("tacos-ccl")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "_generated"]
html_static_path = ["_static"]
default_role = "code"
myst_enable_extensions = ["colon_fence", "deflist"]  # no formulas: their fonts need a network
myst_heading_anchors = 3

napoleon_numpy_docstring = False
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_mock_imports = [name for name in ("mpi4py", "torch") if find_spec(name) is None]  # optional
autodoc_default_options = {"members": True, "show-inheritance": True}

# The build uses no network, so names of other projects are not looked up, and neither are names
# without a module, which annotations use for types of their own file.
nitpick_ignore_regex = [
    (r"py:class", r"_Args|_Result"),  # type variables
    (
        r"py:.*",
        r"(abc|numpy|np|collections|fractions|pathlib|io|os|socket|torch|dist|MPI|mpi4py|typing|concurrent|msgspec|pandas|pyarrow|nx)\..*",
    ),
    (
        r"py:class",
        r"(list|dict|Mapping|Sequence|Literal)\[.*",
    ),  # types of attributes, which Sphinx takes apart
    (r"py:class", r"[A-Z]\w*"),
    (r"py:class", r"tacos\.\w+\._\w+"),  # type variables
    (r"py:class", r"tacos\._core\.(RankExecutor|Endpoint|Udp\w+)"),
    (r"py:class", r"tacos\.synth\.baselines\.nccl\.group\.Group"),
    (r"py:class", r"tacos\.training\.folded\.\w+"),  # inner parts of a step
    (
        r"py:class",
        r"tacos\._core\.(Hub|Socket)\w*",
    ),  # the hub's core, which its server and workers wrap
    (r"py:class", r"tacos\._support\..*"),
    (r"py:class", r"tacos\._core\.Chakra\w+"),  # columns of a file, documented where they are read
]

# Rooms may use a word for a class of their own, such as Worker; a bare name then links to the nearest.
suppress_warnings = ["ref.python"]

html_theme = "furo"
html_title = "TACOS"
html_show_sourcelink = False
html_css_files = ["manual.css"]


def _keep_colons(_app: object, what: str, *rest: Any) -> None:
    """Napoleon takes what stands before a colon in an attribute's first line for its type."""
    if what in {"attribute", "data", "property"}:
        rest[-1][:0] = ["..", ""]  # an empty comment: there is no colon in it


def _follow_the_theme(_app: object, doctree: Any) -> None:
    """A picture with a dark twin is shown where the page is light, and its twin where the page is dark."""
    from docutils import nodes

    for image in list(doctree.findall(nodes.image)):
        twin = pictures.dark_twin(image["uri"])
        if twin is not None:
            dark = copy.copy(image)
            dark.attributes = dict(image.attributes) | {"uri": twin}
            dark["classes"] = [*image["classes"], "only-dark"]
            image["classes"] = [*image["classes"], "only-light"]
            image.parent.insert(image.parent.index(image) + 1, dark)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    pictures.draw()
    # Before Sphinx collects the images of a page, at 500.
    app.connect("doctree-read", _follow_the_theme, priority=100)
    app.connect("autodoc-process-docstring", _keep_colons, priority=100)
