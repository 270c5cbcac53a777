"""Notebooks show well-formed HTML with the main figures."""

from __future__ import annotations

import re
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest

import tacos

pytestmark = pytest.mark.unsanitized

TOPOLOGY = tacos.topology.dgx_h100(2, nvls=False)
COLLECTIVE = tacos.collective.all_reduce(TOPOLOGY, "64MB", chunks=1)
SCHEDULE = tacos.synthesize(TOPOLOGY, COLLECTIVE, engine="ring")


def shown(item):
    """Return the HTML of an object, after parsing it as XML to find unclosed tags."""
    html = item._repr_html_()
    ET.fromstring(f"<div>{html.replace('<br>', '<br/>')}</div>")
    return re.sub(r"\s+", " ", html)


def test_a_small_network_is_drawn_and_a_large_one_described():
    assert "<svg" in shown(TOPOLOGY)
    large = shown(tacos.topology.torus(50, 50))
    assert "<svg" not in large
    assert "2,500" in large


def test_a_schedule_shows_time_and_efficiency_and_the_viewer():
    html = shown(SCHEDULE)
    assert html.count("<iframe") == 1
    assert "64 MB" in html
    assert f"{100 * (SCHEDULE.efficiency or 0):.1f} %" in html


def test_a_trace_shows_its_heat_map_if_it_was_recorded():
    assert "<svg" in shown(tacos.simulate(SCHEDULE))
    assert "<svg" not in shown(tacos.simulate(SCHEDULE, record=False))


def test_a_comparison_is_a_table_the_fastest_first():
    result = tacos.compare(TOPOLOGY, COLLECTIVE, engines=["ring", "hierarchical"])
    html = shown(result)
    assert html.index("hierarchical") < html.index("<td>ring")
    assert "times as fast as ring" in html
    sweep = tacos.compare(TOPOLOGY, [COLLECTIVE], engines=["ring"])
    assert "64,000,000" in shown(sweep)


def test_a_program_and_names_that_look_like_markup():
    assert "steps" in shown(tacos.lower(SCHEDULE))
    named = SCHEDULE.with_facts(engine="<b>&")
    assert "&lt;b&gt;&amp;" in shown(named)


@pytest.mark.parametrize("module", ["tacos.view", "tacos.console", "rich"])
def test_the_package_does_not_import_what_shows_it(module):
    code = f"import sys, tacos; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
