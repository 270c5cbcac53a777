"""The charts at the top of the benchmarks page are drawn from the output of benchmarks."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.charts import CHARTS
from benchmarks.report import Result, with_charts, with_section

pytestmark = pytest.mark.unsanitized

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
TEXT = """# Benchmarks

Printed on a machine.

## The model of stock NCCL

`benchmarks/nccl.py`

```text
A100  all-reduce         8     1 MiB        93      92.0 us      -1.1%  ring LL
A100  all-reduce         8    16 MiB       232       202 us     -13.0%  ring LL128
```
"""


def test_charts_come_first_and_again_in_their_place(tmp_path):
    once = with_charts(TEXT, tmp_path)
    head, _, rest = once.partition("## The model")
    assert head.count("```{image}") == 1
    assert "/_static/benchmarks/nccl.svg" in head
    assert rest == TEXT.partition("## The model")[2]
    assert with_charts(once, tmp_path) == once
    drawn = ET.fromstring((tmp_path / "_static" / "benchmarks" / "nccl.svg").read_text())
    tips = [str(tip.text) for tip in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert "8 A100, measured: 16 MiB, 232 us" in tips
    assert "8 A100, model: 16 MiB, 202 us" in tips


@pytest.mark.parametrize("name", CHARTS)
def test_output_without_a_table_has_no_chart(name):
    assert CHARTS[name].draw("It failed.\n") is None


def test_the_page_of_the_manual_has_its_charts():
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition("\n## ")[0].count("```{image}") == len(CHARTS)


def test_a_section_goes_to_its_place_and_replaces_an_earlier_one():
    """`foundation` comes before `nccl`, `training` after it."""
    text = TEXT
    for name, printed in (("training", "one"), ("foundation", "two"), ("training", "three")):
        text = with_section(text, Result(name, printed, ""))
    places = [text.index(f"`benchmarks/{name}.py`") for name in ("foundation", "nccl", "training")]
    assert places == sorted(places)
    assert "one" not in text.partition("`benchmarks/training.py`, measured on ")[2]
    assert text.rstrip().endswith("```text\nthree\n```")
    assert text.startswith("# Benchmarks\n\nPrinted on a machine.\n\n## ")
