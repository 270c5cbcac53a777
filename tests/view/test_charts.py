"""Charts: marks lie where their values say, within the plot, and texts fit."""

from __future__ import annotations

import base64
import dataclasses
import math
import re
import struct
import zlib
from functools import cache
from itertools import pairwise
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacos
from tacos.view import (
    Axis,
    Series,
    bars,
    darkened,
    draw,
    heat_map,
    lines,
    picture,
    save,
    stack,
)

pytestmark = pytest.mark.unsanitized

NAN = float("nan")
SIZE, TIME = Axis("size", "size", log=True), Axis("time", "time", log=True)
SPEED = Axis("busbw", "bandwidth")


@cache
def parsed(svg):
    return ET.fromstring(svg)


def shapes(svg, tag, **having):
    found = parsed(svg).iter(f"{{http://www.w3.org/2000/svg}}{tag}")
    return [one for one in found if all(one.get(key) == value for key, value in having.items())]


def texts(svg):
    return [one.text for one in shapes(svg, "text")]


def place(shape):
    x, y = shape.get("transform").removeprefix("translate(").removesuffix(")").split()
    return float(x), float(y)


def marks(svg):
    """Where the markers of the curves are, by their tooltips; those of the legend have none."""
    return {one[0].text: place(one) for one in shapes(svg, "path", **{"class": "mark"}) if len(one)}


def plot(svg):
    (frame,) = shapes(svg, "rect", **{"class": "plot"})
    left, top, wide, high = (float(frame.get(key)) for key in ("x", "y", "width", "height"))
    return left, top, left + wide, top + high


def placed_texts(svg):
    """All horizontal texts with their positions in the picture."""
    moved = {id(g[-1]): place(g) for g in shapes(svg, "g") if g.get("transform")}
    for one in shapes(svg, "text"):
        if "rotate" not in one.get("transform", ""):
            dx, dy = moved.get(id(one), (0, 0))
            yield one, dx + float(one.get("x")), dy + float(one.get("y"))


def within_the_paper(svg):
    root = parsed(svg)
    for one, x, y in placed_texts(svg):
        room = 0.6 * float(one.get("font-size")) * len(one.text)
        share = {"end": 1.0, "middle": 0.5}.get(one.get("text-anchor"), 0.0)
        assert x - share * room >= 0, one.text
        assert x + (1 - share) * room <= float(root.get("width")), one.text
        assert 0 < y <= float(root.get("height")), one.text


# Curves.


@given(
    st.lists(
        st.lists(st.floats(1e-7, 1e3) | st.just(NAN), min_size=3, max_size=3),
        min_size=1,
        max_size=15,
    ).filter(lambda table: not all(math.isnan(v) for row in table for v in row)),
    st.booleans(),
)
def test_every_value_has_a_marker_within_the_plot_and_higher_is_higher(table, log):
    sizes = [1e3, 2e6, 4e9]
    series = [Series(f"engine-{k}", row, sizes) for k, row in enumerate(table)]
    svg = lines(series, SIZE, Axis("time", "time", log=log))
    left, top, right, bottom = plot(svg)
    by_value = {}
    for (tip, (x, y)), value in zip(
        marks(svg).items(), [v for row in table for v in row if not math.isnan(v)], strict=True
    ):
        assert left <= x <= right, tip
        assert top <= y <= bottom, tip
        by_value[value] = y
    heights = [by_value[value] for value in sorted(by_value)]
    assert heights == sorted(heights, reverse=True)
    assert "nan" not in svg
    within_the_paper(svg)


def test_a_logarithmic_axis_spaces_by_ratio_and_an_even_one_by_difference():
    """1, 10 and 100 KB are evenly spaced on a logarithmic axis; 25, 50 and 75 GB/s on a linear one."""
    svg = lines([Series("ring", [25e9, 50e9, 75e9], [1e3, 1e4, 1e5])], SIZE, SPEED)
    (x0, y0), (x1, y1), (x2, y2) = marks(svg).values()
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert {"1 kB", "10 kB", "100 kB", "20 GB/s", "60 GB/s", "0"} <= set(texts(svg))


def test_sizes_that_are_powers_of_two_have_ticks_that_are():
    sizes = [2**k for k in range(10, 33)]
    svg = lines([Series("ring", [1.0] * len(sizes), sizes)], SIZE, TIME)
    assert {"1 KiB", "32 KiB", "1 MiB", "32 MiB", "1 GiB"} <= set(texts(svg))


def test_a_gap_in_the_values_is_a_gap_in_the_curve():
    svg = lines([Series("ring", [1, 2, NAN, 3, 4], [1, 2, 3, 4, 5])], Axis("x"), Axis("y"))
    (curve,) = shapes(svg, "path", **{"class": "curve"})
    assert re.sub("[^ML]", "", curve.get("d")) == "MLML"
    assert len(marks(svg)) == 4


def test_thirty_curves_look_different():
    series = [Series(f"engine-{k}", [k + 1.0, 2.0], [1, 2]) for k in range(30)]
    svg = lines(series, Axis("x"), Axis("y"))
    legend = [g for g in shapes(svg, "g") if g.get("transform")]
    assert [g[-1].text for g in legend] == [one.name for one in series]
    looks = {(g[0].get("stroke"), g[1].get("d")) for g in legend}
    assert len(looks) == 30


def test_a_ceiling_is_dashed_and_shades_what_is_above_it():
    limit = Series("bound", [3.0, 3.0], [1, 2], "ceiling")
    svg = lines([Series("ring", [1.0, 2.0], [1, 2]), limit], Axis("x"), Axis("y"))
    curve = shapes(svg, "path", **{"class": "curve"})[-1]
    assert curve.get("stroke-dasharray")
    height = float(curve.get("d").split("L")[0].split()[1])
    (shade,) = shapes(svg, "path", fill="#f0f2f5")
    numbers = [float(word) for word in re.findall(r"[\d.]+", shade.get("d"))]
    _, top, _, _ = plot(svg)
    assert min(numbers[1::2]) == pytest.approx(top)
    assert height > top
    assert "bound" in texts(svg)


def test_one_point_is_enough():
    svg = lines([Series("ring", [1e-3], [1e6])], SIZE, TIME, title="<one> & only")
    assert len(marks(svg)) == 1
    assert "<one> & only" in texts(svg)


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ([], "nothing to draw"),
        ([Series("ring", [NAN], [1])], "nothing to draw"),
        ([Series("ring", [1, 2], [1])], 'series "ring" has 1 places and 2 values'),
        ([Series("ring", [0.0], [1])], 'series "ring" has 0 on the logarithmic axis time'),
    ],
)
def test_what_cannot_be_drawn_is_named(series, message):
    with pytest.raises(ValueError, match=message):
        lines(series, SIZE, TIME)


def test_a_width_out_of_range_is_named():
    with pytest.raises(ValueError, match="width must be between 300 and 20000 pixels; got 10"):
        lines([Series("ring", [1], [1])], Axis("x"), Axis("y"), width=10)


# Bars.


def bar_lengths(svg):
    rects = [one for one in shapes(svg, "rect") if len(one)]
    return {one[0].text: float(one.get("width")) for one in rects}


def test_bars_are_as_long_as_their_values():
    series = [Series("ring", [10.0, 20.0]), Series("direct", [30.0, NAN])]
    svg = bars(["mesh", "torus"], series, Axis("speed-up"), mark=(15.0, "goal"))
    lengths = bar_lengths(svg)
    assert set(lengths) == {"mesh, ring: 10", "torus, ring: 20", "mesh, direct: 30"}
    unit = lengths["mesh, ring: 10"] / 10
    assert lengths["torus, ring: 20"] == pytest.approx(20 * unit, abs=0.2)
    assert lengths["mesh, direct: 30"] == pytest.approx(30 * unit, abs=0.2)
    assert {"mesh", "torus", "ring", "direct", "goal 15", "10", "20", "30"} <= set(texts(svg))
    within_the_paper(svg)


def test_a_dozen_series_of_bars_look_different():
    svg = bars(["a"], [Series(f"s{k}", [1.0]) for k in range(12)], Axis("x"))
    fills = [one.get("fill") for one in shapes(svg, "rect") if len(one)]
    assert len(set(fills)) == 12
    defined = {f"url(#{one.get('id')})" for one in shapes(svg, "pattern")}
    assert {fill for fill in fills if fill.startswith("url")} <= defined


def test_notes_follow_the_values_of_a_single_series():
    svg = bars(["a", "b"], [Series("x", [1e9, 2e9])], SPEED, notes=["50 %", ""])
    assert {"1 GB/s, 50 %", "2 GB/s"} <= set(texts(svg))


# Heat maps.


def pixels(svg):
    """The image in the picture as indices into its palette."""
    href = shapes(svg, "image")[0].get("href")
    data = base64.b64decode(href.partition("base64,")[2])
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    parts, at = {}, 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(
            kind + body
        )
        parts[kind], at = body, at + 12 + length
    wide, high = struct.unpack(">II", parts[b"IHDR"][:8])
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(high, wide + 1)
    assert not rows[:, 0].any()
    return rows[:, 1:], np.frombuffer(parts[b"PLTE"], np.uint8).reshape(256, 3)


def test_a_heat_map_has_a_pixel_for_every_value():
    svg = heat_map([[0, 0.5], [1, 0.25]], Axis("time", "time"), (0, 4e-6), row_labels=["a", "b"])
    levels, palette = pixels(svg)
    assert levels.tolist() == [[0, 128], [255, 64]]
    light = palette.astype(int) @ [299, 587, 114]
    assert (np.diff(light) >= 0).all()
    assert {"a", "b", "1 us", "4 us", "100 %", "0"} <= set(texts(svg))
    within_the_paper(svg)


def test_more_rows_than_pixels_are_averaged():
    table = np.zeros((6000, 3))
    table[::2] = 1
    levels, _ = pixels(heat_map(table, Axis("time", "time"), (0, 1), row_labels=["x"] * 6000))
    assert levels.shape == (600, 3)
    assert set(levels.ravel().tolist()) == {128}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"values": [1, 2]}, r"values has the shape \(2,\)"),
        ({"values": [[-1]]}, "values has a negative number or NaN"),
        ({"row_labels": ["a", "b"]}, "row_labels has 2 entries, values 1 rows"),
        ({"extent": (1, 1)}, r"extent is \(1, 1\)"),
    ],
)
def test_a_wrong_heat_map_is_named(wrong, message):
    call = {"values": [[1]], "extent": (0, 1)} | wrong
    with pytest.raises(ValueError, match=message):
        heat_map(x=Axis("time", "time"), **call)


# Stacked pictures, and files.


def test_stacked_pictures_do_not_overlap(tmp_path):
    one = lines([Series("ring", [1, 2], [1, 2])], Axis("x"), Axis("y"))
    other = bars(["a"], [Series("b", [1])], Axis("c"))
    svg = stack([one, other, one])
    inner = shapes(svg, "svg")[1:]
    ends = [(float(s.get("y")), float(s.get("y")) + float(s.get("height"))) for s in inner]
    assert all(end == begin for (_, end), (begin, _) in pairwise(ends))
    assert float(parsed(svg).get("height")) == ends[-1][1]
    save(svg, tmp_path / "all.png")
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")
    save(svg, tmp_path / "all.svg")
    assert (tmp_path / "all.svg").read_text() == svg


def test_a_sweep_explains_the_shade_and_marks_rejected_engines():
    """An engine is wrong at the first size and fails at the second: one cross at its time, one on the axis."""
    topology = tacos.topology.ring(4)
    sweep = tacos.compare(
        topology,
        [tacos.collective.all_gather(topology, size) for size in ("1MB", "4MB")],
        engines=["ring", "direct"],
    )
    first, second = sweep.comparisons

    def changed(one, **fields):
        return tuple(
            dataclasses.replace(c, **fields) if c.engine == "direct" else c for c in one.candidates
        )

    wrong = changed(first, ok=False, wrong=True, note="npu 2 lacks chunk 1")
    failed = changed(second, ok=False, figures=None, note="it ran out of time")
    result = dataclasses.replace(
        sweep,
        comparisons=(
            dataclasses.replace(first, candidates=wrong),
            dataclasses.replace(second, candidates=failed),
        ),
    )
    chart = picture(result, "ring:4")
    assert chart.count("faster than any schedule") == 2
    assert chart.count("direct: wrong: npu 2 lacks chunk 1") == 2  # in both charts
    assert chart.count("direct: failed: it ran out of time") == 2
    assert 'text-decoration="line-through">direct' in chart
    assert "direct was wrong at 1 MB: npu 2 lacks chunk 1." in chart
    plain = picture(sweep, "ring:4")
    assert "line-through" not in plain
    assert 'class="cross"' not in plain


def test_dark_pictures_have_the_same_shapes_and_no_white_paper():
    topology = tacos.topology.dgx_h100(2, nvls=False)
    light = draw(topology)
    dark = darkened(light)
    assert '"#ffffff"' not in dark
    assert dark.count("<path") == light.count("<path")
    assert len(dark) == len(light)
