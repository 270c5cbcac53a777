"""The viewer in a real browser: what it shows, computes and lets people do."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos import training
from tacos import view as pictures
from tacos.schedule import retime, routes
from tacos.simulate.timeline import Timeline
from tacos.view import page
from tacos.view.serve import Server
from tacos.workload import COMP, from_nodes

pytestmark = [pytest.mark.unsanitized, pytest.mark.xdist_group("browser")]
US = 1_000_000
LAPTOP = {"width": 1366, "height": 650}  # what a browser leaves of 1366 x 768


@pytest.fixture
def view(browser, tmp_path):
    """Open a page; fail the test if the page logs anything or requests anything from elsewhere."""
    contexts, complaints, asked = [], [], []
    numbers = itertools.count()

    def start(text, *, address=None, **options):
        path = tmp_path / f"{next(numbers)}.html"
        path.write_text(text)
        context = browser.new_context(viewport=LAPTOP, **options)
        contexts.append(context)
        shown = context.new_page()
        shown.set_default_timeout(20_000)
        shown.on("console", lambda message: complaints.append(message.text))
        shown.on("pageerror", lambda error: complaints.append(str(error)))
        shown.on("request", lambda request: asked.append(request.url))
        shown.goto(address or path.as_uri())
        shown.wait_for_function("window.viewer")
        return shown

    yield start
    for context in contexts:
        context.close()
    assert complaints == []
    here = ("file:", "data:", "blob:", "http://127.0.0.1")
    assert [address for address in asked if not address.startswith(here)] == []


def at(shown, seconds):
    shown.evaluate("seconds => { viewer.goto(seconds); viewer.draw(); }", seconds)


def panel(shown):
    shown.evaluate("viewer.draw()")
    return " ".join(shown.inner_text("#panel").split())


def count(shown, what="#panel tbody tr"):
    shown.evaluate("viewer.draw()")  # now, not with the next frame
    return shown.locator(what).count()


def relayed():
    """Two chunks over 0 -> 1 -> 2, 1 us each and 1 us of latency: starts at 0 and 1, 2 and 3 us."""
    topology = tp.mesh(3, bandwidth="1GB/s", latency="1us")
    table = routes(topology, pairs=([0, 1], [1, 2]))
    return retime(
        co.broadcast(topology, "2KB", chunks=2),
        table,
        route=[0, 0, 1, 1],
        chunk=[0, 1, 0, 1],
        step=[0, 0, 1, 1],
    )


@pytest.fixture(scope="module")
def relay():
    return relayed()


@pytest.fixture(scope="module")
def mesh():
    topology = tp.mesh(3, 3)
    return tacos.synthesize(topology, co.all_reduce(topology, "9MB", chunks=2), engine="greedy")


# --- what it shows ------------------------------------------------------------------------------


def test_the_summary_is_the_schedules(view, mesh):
    shown = view(page(mesh, names=["mesh.tacos"]))
    assert shown.title() == "all-reduce, 9 MB on mesh 3×3 – tacos"
    caption = " ".join(shown.inner_text("#networks figcaption").split())
    assert caption.startswith("mesh.tacos executed ")
    assert f"of the bound {100 * mesh.efficiency:.1f} %" in caption
    for words in ("engine greedy", f"transfers {mesh.transfers}", "busbw"):
        assert words in caption
    text = panel(shown)
    for words in (
        "collective all-reduce, 9 MB",
        "executed ",
        "seed 0",
        "chunks 2 per part, 18 in all of 500 kB",
        "bound",
    ):
        assert words in text
    assert shown.is_hidden("#notes")


def test_everything_fits_a_laptop_screen(view, mesh):
    shown = view(page(mesh, mesh))
    assert shown.evaluate("document.documentElement.scrollHeight") <= LAPTOP["height"]
    for name in ("#slider", "#progress", "#histogram", '[data-heat="1"]', '[data-run="1"]'):
        box = shown.locator(name).bounding_box()
        assert box["height"] >= 12
        assert box["y"] + box["height"] <= LAPTOP["height"]
        assert box["x"] + box["width"] <= LAPTOP["width"]


def test_light_and_dark_follow_the_system_and_the_button(view, relay):
    def brightness(shown):
        colour = shown.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour[4:-1].split(","))

    light, dark = (view(page(relay), color_scheme=scheme) for scheme in ("light", "dark"))
    assert brightness(light) > 600
    assert brightness(dark) < 200
    light.click("#theme")
    assert brightness(light) < 200
    assert light.evaluate("viewer.colours.paper") == dark.evaluate("viewer.colours.paper")


MOVING = """tick => {
  const run = viewer.runs[0], found = [];
  for (let link = 0; link < run.links; link++)
    run.moving(link, tick, (i) => found.push([link, run.chunkOf[run.transferOf[i]]]));
  return found.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
}"""


def test_the_slider_moves_the_chunks_that_are_on_their_way(view, mesh):
    shown = view(page(mesh))
    trace = tacos.simulate(mesh, timing="schedule")
    latency = mesh.topology.link_latency_ps
    pictures = set()
    for share in (0, 0.13, 0.5, 0.77):
        shown.locator("#slider").fill(str(round(share * 100_000)))
        shown.evaluate("viewer.draw()")
        now = shown.evaluate("viewer.seconds / viewer.runs[0].tick")
        assert now == pytest.approx(share * mesh.time_ps, abs=mesh.time_ps / 1e5)
        on = (trace.begin_ps <= now) & (now < trace.end_ps + latency[trace.link])
        expected = sorted(
            [int(link), int(mesh.chunk[transfer])]
            for link, transfer in zip(trace.link[on], trace.transfer[on], strict=True)
        )
        assert shown.evaluate(MOVING, now) == expected
        assert shown.evaluate("viewer.views[0].dotsShown") == len(expected)
        pictures.add(shown.locator('[data-run="0"]').screenshot())
    assert len(pictures) == 4


def test_a_dot_goes_from_one_end_of_its_link_to_the_other(view, relay):
    shown = view(page(relay))
    link = int(np.flatnonzero((relay.topology.link_src == 0) & (relay.topology.link_dst == 1))[0])
    where = shown.evaluate(
        "link => [0, 0.5, 1].map((share) => viewer.views[0].along(link, share)[0])", link
    )
    ends = shown.evaluate("[0, 1].map((k) => viewer.views[0].px(viewer.views[0].xy[2 * k]))")
    assert where == pytest.approx([ends[0], sum(ends) / 2, ends[1]], abs=1)


def test_links_are_coloured_by_how_busy_they_are(view, relay):
    shown = view(page(relay))
    link = int(np.flatnonzero((relay.topology.link_src == 0) & (relay.topology.link_dst == 1))[0])

    def colour(seconds):
        at(shown, seconds)
        return shown.evaluate(
            """link => {
              const view = viewer.views[0], ratio = devicePixelRatio;
              const [x, y] = view.along(link, 0.95 - view.rims[2 * link + 1]);
              const copy = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
              copy.drawImage(view.canvas, -Math.round(x * ratio), -Math.round(y * ratio));
              return [...copy.getImageData(0, 0, 1, 1).data];
            }""",
            link,
        )

    busy, idle = colour(0.5e-6), colour(4.5e-6)
    shades = shown.evaluate("[viewer.colours.shades[255], viewer.colours.shades[0]]")
    assert busy[:3] == pytest.approx(shades[0], abs=12)
    assert idle[:3] == pytest.approx(shades[1], abs=12)


# --- what people select ---------------------------------------------------------------------------


def test_a_click_selects_an_npu_and_says_what_it_holds_and_why_it_waits(view, relay):
    shown = view(page(relay))
    at(shown, 0.5e-6)
    box = shown.locator('[data-run="0"]').bounding_box()
    x, y = shown.evaluate(
        "[viewer.views[0].px(viewer.views[0].xy[2]), viewer.views[0].py(viewer.views[0].xy[3])]"
    )
    shown.mouse.click(box["x"] + x, box["y"] + y)
    text = panel(shown)
    assert text.startswith("NPU 1")
    assert "complete none yet" in text
    assert (
        "chunk 0 → NPU 2 at 2.000 us waits for its data from NPU 0, which arrive at 2.000 us"
        in text
    )
    assert "Receives now chunk 0 ← NPU 0" in text
    at(shown, 2.5e-6)
    text = panel(shown)
    assert "complete chunks 0" in text
    assert "Sends now chunk 0 → NPU 2" in text
    shown.evaluate("viewer.select({kind: 'npu', id: 0})")
    at(shown, 0.5e-6)
    text = panel(shown)
    assert "own data chunks 0–1" in text
    assert (
        "chunk 1 → NPU 1 at 1.000 us waits for the link, busy with chunk 0 until 1.000 us" in text
    )


def test_a_click_on_a_link_shows_its_queue(view, relay):
    shown = view(page(relay))
    link = int(np.flatnonzero((relay.topology.link_src == 0) & (relay.topology.link_dst == 1))[0])
    box = shown.locator('[data-run="0"]').bounding_box()
    x, y = shown.evaluate("link => viewer.views[0].along(link, 0.5)", link)
    shown.mouse.click(box["x"] + x, box["y"] + y)
    assert shown.evaluate("viewer.pick") == {"kind": "link", "id": link}
    assert "NPU 0 → NPU 1" in panel(shown)
    # Chunk 1 is there from the start and waits until 1 us; nothing waits for the second link.
    assert shown.evaluate("link => viewer.runs[0].queue(link)", link) == [[0, 1], [US, 0]]
    assert count(shown, "canvas.queue") == 1


def test_a_click_on_the_heat_map_selects_link_and_moment(view, mesh):
    shown = view(page(mesh))
    box = shown.locator('[data-heat="0"]').bounding_box()
    half = shown.evaluate("viewer.heats[0].x(viewer.whole / 2)")
    shown.mouse.click(box["x"] + half, box["y"] + box["height"] / 2)
    pick = shown.evaluate("viewer.pick")
    assert pick["kind"] == "link"
    assert abs(pick["id"] - mesh.topology.links / 2) <= 3
    assert shown.evaluate("viewer.seconds") == pytest.approx(mesh.time_s / 2, rel=0.05)


def test_a_chunk_is_found_and_followed(view, mesh):
    shown = view(page(mesh))
    shown.fill("#find", "chunk 4")
    shown.press("#find", "Enter")
    assert shown.evaluate("viewer.pick") == {"kind": "chunk", "id": 4}
    rows = mesh.rows()
    mine = rows["chunk"] == 4
    assert count(shown) == mine.sum()
    tree = shown.evaluate(
        "viewer.runs[0].tree(4).map(r => [r.begin, r.end, r.sources[0], r.targets[0]])"
    )
    names = ("start_ps", "arrival_ps", "src", "dst")
    expected = zip(*(rows[name][mine].tolist() for name in names), strict=True)
    assert sorted(map(tuple, tree)) == sorted(expected)
    shown.locator("#panel tbody tr:last-child button.time").click()
    assert shown.evaluate("viewer.seconds") == pytest.approx(rows["start_ps"][mine].max() * 1e-12)
    shown.locator("#panel tbody tr:last-child button[data-kind=npu]").first.click()
    assert shown.evaluate("viewer.pick.kind") == "npu"
    shown.fill("#find", "npu 99")
    shown.press("#find", "Enter")
    assert shown.evaluate("document.getElementById('find').validationMessage") != ""


def test_transfers_are_ready_when_what_they_read_has_arrived(view, mesh):
    """Compared with the dependencies that the core computes."""
    shown = view(page(mesh))
    found = shown.evaluate(
        """() => { const run = viewer.runs[0];
          return Array.from(run.begin, (_, i) => [run.transferOf[i], run.ready(i).time]); }"""
    )
    begin, writer = mesh.dependencies()
    rows = mesh.rows()
    arrival = np.zeros(mesh.transfers, np.int64)
    arrival[rows["transfer"]] = rows["arrival_ps"]
    for transfer, ready in found:
        needed = arrival[writer[begin[transfer] : begin[transfer + 1]]]
        assert ready == needed.max(initial=0)


def test_holdings_are_what_has_arrived(view, mesh):
    shown = view(page(mesh))
    rows = mesh.rows()
    for npu in (0, 4):
        for moment in (mesh.time_ps // 3, mesh.time_ps):
            held = shown.evaluate("([npu, t]) => viewer.runs[0].holds(npu, t)", [npu, moment])
            there = (rows["dst"] == npu) & (rows["arrival_ps"] <= moment)
            copied = set(rows["chunk"][there & (rows["op"] == 0)].tolist())
            added = set(rows["chunk"][there & (rows["op"] == 1)].tolist())
            assert held["whole"] == sorted(copied)
            assert held["sums"] == sorted(added - copied)
            assert held["arrived"] == there.sum()


def test_the_critical_path_is_listed_and_drawn(view, relay):
    shown = view(page(relay))
    before = shown.locator('[data-run="0"]').screenshot()
    shown.click("#path")
    assert "3 transfers, of which 1 began when their data arrived, 1 when a link was free" in panel(
        shown
    )
    assert count(shown) == 3
    shown.mouse.move(5, 5)
    assert shown.locator('[data-run="0"]').screenshot() != before
    shown.evaluate("viewer.draw()")
    assert shown.get_attribute("#path", "aria-pressed") == "true"


# --- how people move about ------------------------------------------------------------------------


def test_every_key_does_what_the_help_says(view, mesh):
    shown = view(page(mesh))

    def value(expression):
        return shown.evaluate(expression)

    def press(*keys):
        for key in keys:
            shown.keyboard.press(key)

    press("ArrowRight", "ArrowRight", "ArrowLeft")
    assert value("viewer.seconds / viewer.whole") == pytest.approx(0.01)
    press("End")
    assert value("viewer.seconds") == value("viewer.whole")
    press("Home", ".")
    starts = np.unique(mesh.rows()["start_ps"])
    assert value("viewer.seconds") == pytest.approx(starts[starts > 0][0] * 1e-12)
    press(".", ",")
    assert value("viewer.seconds") == pytest.approx(starts[starts > 0][0] * 1e-12)
    press("n", "n", "N", "n")
    assert value("viewer.pick") == {"kind": "npu", "id": 1}
    assert shown.text_content("#said") == "NPU 1 selected"
    press("l")
    assert value("viewer.pick") == {"kind": "link", "id": 0}
    press("C")
    assert value("viewer.pick") == {"kind": "chunk", "id": mesh.collective.chunks - 1}
    press("Escape")
    assert value("viewer.pick") is None
    press("p")
    assert value("viewer.path")
    scale = value("viewer.views[0].zoom.scale")
    press("+", "+", "-")
    assert value("viewer.views[0].zoom.scale") == pytest.approx(1.25 * scale)
    x = value("viewer.views[0].zoom.x")
    press("d")
    assert value("viewer.views[0].zoom.x") == pytest.approx(x - 60)
    press("0")
    shown.evaluate("viewer.draw()")
    assert value("viewer.views[0].zoom.scale") == pytest.approx(scale)
    press("]", "]", "[")
    assert value("document.getElementById('speed').value") == "4"
    press("?")
    assert value("document.getElementById('keys').open")
    press("Escape", "f")
    assert value("document.activeElement.id") == "find"


def test_play_goes_on_by_itself_and_stops_at_the_end(view, relay):
    shown = view(page(relay))
    shown.keyboard.press(" ")
    shown.wait_for_function("viewer.seconds > 0.02 * viewer.whole")
    shown.keyboard.press(" ")
    assert not shown.evaluate("viewer.playing")
    at(shown, 4.99e-6)
    shown.click("#play")
    shown.wait_for_function("!viewer.playing")
    assert shown.evaluate("viewer.seconds === viewer.whole")


def test_wheel_and_drag_zoom_and_pan(view, mesh):
    shown = view(page(mesh))
    box = shown.locator('[data-run="0"]').bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + 20
    before = shown.evaluate("({...viewer.views[0].zoom})")
    shown.mouse.move(x, y)
    shown.mouse.wheel(0, -300)
    shown.wait_for_function("viewer.views[0].zoom.free")
    zoomed = shown.evaluate("({...viewer.views[0].zoom})")
    assert zoomed["scale"] > before["scale"]
    shown.mouse.down()
    shown.mouse.move(x + 50, y + 30)
    shown.mouse.up()
    panned = shown.evaluate("({...viewer.views[0].zoom})")
    assert panned["x"] == pytest.approx(zoomed["x"] + 50)
    assert shown.evaluate("viewer.pick") is None  # a drag is not a click


# --- comparisons, large schedules, the server -----------------------------------------------------


def test_two_schedules_share_one_clock(view, mesh):
    slow = tacos.synthesize(
        mesh.topology, co.all_reduce(mesh.topology, "9MB", chunks=2), engine="ring"
    )
    shown = view(page(mesh, slow, names=["ours.tacos", "ring.tacos"]))
    assert slow.time_s > mesh.time_s
    assert shown.evaluate("viewer.whole") == pytest.approx(slow.time_s)
    assert shown.locator("#networks canvas").count() == 2
    assert shown.locator("#heat canvas").count() == 2
    at(shown, mesh.time_s * 1.001)
    assert shown.evaluate("viewer.views.map((view) => view.dotsShown)")[0] == 0
    assert shown.evaluate("viewer.views.map((view) => view.dotsShown)")[1] > 0
    shown.evaluate("viewer.select({kind: 'npu', id: 4})")
    text = panel(shown)
    assert text.count("NPU 4") >= 2
    assert "A ours.tacos" in text
    assert "B ring.tacos" in text


def test_different_networks_can_be_compared(view, mesh, relay):
    shown = view(page(relay, mesh))
    shown.evaluate("viewer.select({kind: 'npu', id: 8})")
    assert "There is no node 8 here." in panel(shown)
    shown.evaluate("viewer.select({kind: 'chunk', id: 17})")
    assert "There is no chunk 17 here." in panel(shown)


def test_a_long_schedule_says_what_it_hides(view):
    topology = tp.torus(6, 6)
    schedule = tacos.synthesize(topology, co.all_gather(topology, "36MB", chunks=1))
    shown = view(page(schedule, detail=300))
    assert "Of 1,260 transfers 280 can be looked at one by one" in shown.inner_text("#notes")
    shown.evaluate("viewer.select({kind: 'chunk', id: 1})")
    assert "Its transfers are not in this page" in panel(shown)
    shown.evaluate("viewer.select(null)")
    shown.keyboard.press("c")
    shown.keyboard.press("c")
    assert shown.evaluate("viewer.pick.id") == 5
    assert count(shown) == 35


@pytest.mark.parametrize(
    "build",
    [
        lambda: tp.dgx_h100(2, nvls=False),
        lambda: tp.fat_tree(2, 2, 2),
        lambda: tp.nvl72(1, nvls=False),
        lambda: tp.dragonfly(3, 2),
        lambda: tp.hypercube(4),
    ],
    ids=["boxes", "fat tree", "nvl72", "dragonfly", "hypercube"],
)
def test_every_kind_of_network_opens(view, build):
    topology = build()
    schedule = tacos.synthesize(topology, co.all_gather(topology, "8MB", chunks=1))
    shown = view(page(schedule))
    at(shown, schedule.time_s / 3)
    assert shown.evaluate("viewer.views[0].dotsShown") > 0
    for kind in ("npu", "link", "chunk"):
        shown.evaluate("kind => viewer.select({kind, id: 1})", kind)
        assert panel(shown)
    shown.evaluate(f"viewer.select({{kind: 'npu', id: {topology.nodes - 1}}})")
    assert panel(shown)


def test_trees_through_switches_have_all_their_ends(view):
    """Data of NPUs 1 and 2 are added at the switch on their way to 0, whose sum then reaches both at once."""
    topology = tp.switch(3, multicast=True, reduce=True)
    ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    up, down = [ends.index((k, 3)) for k in range(3)], [ends.index((3, k)) for k in range(3)]
    trees = [[up[1], up[2], down[0]], [up[0], down[1], down[2]]]
    table = routes(topology, links=trees, kinds=["reduce", "multicast"])
    schedule = retime(
        co.all_reduce(topology, "3KB", chunks=1),
        table,
        route=[0, 1] * 3,
        chunk=[0, 0, 1, 1, 2, 2],
        step=[0, 1] * 3,
        op=[1, 0] * 3,
    )
    assert tacos.verify(schedule).ok
    shown = view(page(schedule))
    tree = shown.evaluate("viewer.runs[0].tree(1).map((row) => [row.sources, row.targets])")
    assert tree == [[[1, 2], [0]], [[0], [1, 2]]]
    shown.evaluate("viewer.select({kind: 'chunk', id: 1})")
    assert "1 2 ⊕→ 0" in panel(shown)


def test_a_run_without_transfers_opens(view):
    topology = tp.mesh(2)
    schedule = tacos.synthesize(
        topology, co.broadcast(topology, 1, group=[0], chunks=1), engine="ring"
    )
    assert view(page(schedule)).inner_text("#title").startswith("broadcast")


def test_a_network_without_links_opens(view):
    topology = tp.ring(1)
    shown = view(page(tacos.synthesize(topology, co.all_gather(topology, "1MB"))))
    text = panel(shown)
    assert "algbw –" in text
    shown.keyboard.press("l")
    assert shown.evaluate("viewer.pick") is None
    shown.keyboard.press("n")
    assert panel(shown).startswith("NPU 0 received nothing")


def test_an_npu_outside_the_group_never_fills_up(view):
    topology = tp.fully_connected(3)
    schedule = tacos.synthesize(topology, co.all_gather(topology, "2MB", group=[0, 1], chunks=1))
    shown = view(page(schedule))
    shares = shown.evaluate(
        "[0, 1, 2].map((npu) => viewer.runs[0].received(npu, viewer.runs[0].end))"
    )
    assert shares == [1, 1, 0]


@pytest.mark.slow
def test_a_link_of_very_many_transfers_shows_its_queue(view):
    """More transfers than a call in a browser can have arguments."""
    topology = tp.mesh(2)
    schedule = tacos.synthesize(
        topology, co.broadcast(topology, "300MB", chunks=300_000), engine="greedy"
    )
    shown = view(page(schedule))
    shown.evaluate("viewer.select({kind: 'link', id: 0})")
    assert "and 299,987 more transfers" in panel(shown)


def test_the_critical_path_takes_the_place_of_a_selection(view, mesh):
    shown = view(page(mesh))
    shown.keyboard.press("n")
    shown.evaluate("viewer.draw()")
    assert shown.is_visible("#clear")
    shown.keyboard.press("p")
    assert panel(shown).startswith("Critical path")
    assert shown.input_value("#find") == ""
    shown.evaluate("viewer.draw()")
    assert not shown.is_visible("#clear")


def test_a_selected_switch_is_found_again_by_what_find_says(view):
    topology = tp.switch(3)
    shown = view(page(tacos.synthesize(topology, co.all_gather(topology, "3MB", chunks=1))))
    shown.evaluate("viewer.select({kind: 'npu', id: 3})")
    assert shown.input_value("#find") == "switch 0"
    shown.evaluate("viewer.find('switch 0')")
    assert shown.evaluate("viewer.pick.id") == 3


def test_a_notebook_shows_the_viewer_in_place(browser, mesh):
    context = browser.new_context()
    try:
        notebook = context.new_page()
        complaints: list[str] = []
        notebook.on("console", lambda message: complaints.append(message.text))
        notebook.set_content(f"<!doctype html><body>{mesh._repr_html_()}</body>")
        inside = notebook.frame_locator("iframe")
        inside.locator("#play").click()
        inside.locator("#panel dl").first.wait_for()
        assert complaints == []
    finally:
        context.close()


def test_a_served_page_works_as_well(view, relay):
    with Server(page(relay)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert view("", address=server.url).inner_text("#title").startswith("broadcast, 2 kB")
        finally:
            server.shutdown()
            thread.join()


# --- faults, the heat map, comparing, views -------------------------------------------------------


@pytest.fixture(scope="module")
def cluster():
    """Two boxes on a switch, one of them with a slow link; nodes have names."""
    names = ["a/gpu0", "a/gpu1", "b/gpu0", "tor"]
    speeds = (1e9, 1e9, 0.25e9)
    rows = [
        row for npu, speed in enumerate(speeds) for row in ((npu, 3, speed, 1e-6), (3, npu, speed, 1e-6))
    ]  # fmt: skip
    topology = tp.from_links(3, rows, switches=1, names=names)
    return tacos.synthesize(topology, co.all_gather(topology, "3KB", chunks=1), engine="greedy")


def test_a_fault_shows_as_banner_shade_and_crossed_out_link(view, relay):
    cut = tacos.Fault(link=(0, 1), begin="500ns", end="2500ns")
    shown = view(page(relay, traces=[tacos.simulate(relay, faults=[cut])]))
    assert shown.title().endswith(", simulated – tacos")
    assert shown.inner_text("#banner") == "simulated: link npu 0 → npu 1 down 500 ns to 2.5 us"
    link = shown.evaluate("viewer.runs[0].facts.faults[0].links[0]")
    busy = "([link, us]) => viewer.runs[0].busy(link, us * 1e-6 / viewer.runs[0].tick)"
    assert [shown.evaluate(busy, [link, us]) > 0 for us in (0.25, 1.5, 2.75)] == [True, False, True]
    # The chunk stays where it is while the link is down.
    where = """([link, us]) => { let found = [];
      viewer.runs[0].moving(link, us * 1e-6 / viewer.runs[0].tick, (i, share) => found.push(share));
      return found; }"""
    assert shown.evaluate(where, [link, 1.0]) == shown.evaluate(where, [link, 2.0])
    shown.evaluate("viewer.select({kind: 'link', id: viewer.runs[0].facts.faults[0].links[0]})")
    at(shown, 1.5e-6)
    assert "down until" in panel(shown)
    red = """() => {
      const [x, y] = viewer.views[0].along(viewer.runs[0].facts.faults[0].links[0], 0.5);
      const copy = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
      copy.drawImage(viewer.views[0].canvas, -Math.round(x * devicePixelRatio), -Math.round(y * devicePixelRatio));
      return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3); }"""
    shown.evaluate("viewer.select(null)")
    at(shown, 1.5e-6)
    crossed = shown.evaluate(red)
    at(shown, 2.9e-6)
    assert crossed[0] > 150
    assert max(crossed[1:]) < 90
    assert shown.evaluate(red) != crossed


def test_nothing_is_busy_before_the_first_transfer(view, mesh):
    shown = view(page(mesh))
    busy = "Array.from({length: viewer.runs[0].links}, (_, k) => viewer.runs[0].busy(k, 0))"
    assert not any(shown.evaluate(busy))


def test_the_heat_map_has_groups_an_order_and_names(view, cluster):
    shown = view(page(cluster))
    assert shown.evaluate("viewer.heats[0].groups.map((g) => [g.label, g.count])") == [
        ["1 GB/s, 1 us", 4],
        ["250 MB/s, 1 us", 2],
    ]
    shown.select_option("#grouping", "box")
    assert shown.evaluate("viewer.heats[0].groups.map((g) => g.label)") == ["between boxes"]
    shown.select_option("#grouping", "none")
    shown.select_option("#sorting", "busy")
    used = shown.evaluate(
        "[...viewer.heats[0].order].map((k) => viewer.runs[0].columns.utilisation[k])"
    )
    assert used == sorted(used, reverse=True)
    # A click on a row selects the link that is drawn there.
    last = shown.evaluate("viewer.heats[0].order[5]")
    box = shown.locator('[data-heat="0"]').bounding_box()
    y = shown.evaluate("(link) => viewer.heats[0].y(link)", last)
    shown.mouse.click(box["x"] + box["width"] / 2, box["y"] + y)
    assert shown.evaluate("viewer.pick") == {"kind": "link", "id": last}


@pytest.mark.parametrize(
    ("text", "kind", "what"),
    [
        ("a/gpu0-tor", "link", ("a/gpu0", "tor")),
        ("TOR -> b/gpu0", "link", ("tor", "b/gpu0")),
        ("2 → 3", "link", ("b/gpu0", "tor")),
        ("b/gpu0", "npu", "b/gpu0"),
        ("npu 1", "npu", "a/gpu1"),
    ],
)
def test_find_understands_names_and_ends_of_links(view, cluster, text, kind, what):
    shown = view(page(cluster))
    shown.fill("#find", text)
    shown.press("#find", "Enter")
    assert shown.evaluate("viewer.pick.kind") == kind
    found = shown.evaluate("viewer.pick.id")
    topology = cluster.topology
    names = topology.names
    if kind == "link":
        assert (names[topology.link_src[found]], names[topology.link_dst[found]]) == what
    else:
        assert names[found] == what
    offered = shown.evaluate("[...document.querySelectorAll('#names option')].map((o) => o.value)")
    assert {"a/gpu0", "tor", "a/gpu0-tor"} <= set(offered)


def test_wider_links_are_faster_and_boxes_have_names(view, cluster):
    shown = view(page(cluster))
    wide = shown.evaluate("[...viewer.runs[0].columns.link_wide]")
    slow = cluster.topology.link_bandwidth_Bps < 1e9
    assert np.array(wide)[slow].max() < np.array(wide)[~slow].min()
    assert shown.evaluate("viewer.runs[0].facts.frames.map((f) => f[4])") == ["a", "b"]
    box = shown.evaluate(
        "(() => { const v = viewer.views[0], b = v.box;"
        "return [v.px(b.right) - v.px(b.left), v.py(b.bottom) - v.py(b.top), v.width, v.height]; })()"
    )
    assert min(box[0] / box[2], box[1] / box[3]) > 0.75  # it fills the canvas


def test_two_schedules_begin_with_a_headline_and_one_table(view, mesh, relay):
    slow = tacos.synthesize(mesh.topology, mesh.collective, engine="ring")
    shown = view(page(slow, mesh, names=["ring", "greedy"]))
    factor = slow.time_ps / mesh.time_ps
    assert shown.inner_text("#headline") == f"B (greedy) is {factor:.2f} times as fast as A (ring)"
    text = panel(shown)
    assert f"−{100 * (1 - 1 / factor):.1f} %" in text
    assert count(shown, "#panel table.compare") == 1


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_nothing_overflows_and_no_legend_is_cut(view, mesh, relay, width):
    cut = tacos.Fault(link=(0, 1), begin="500ns", end="2500ns")
    for text in (
        page(mesh, mesh, names=["one.tacos", "another.tacos"]),
        page(relay, traces=[tacos.simulate(relay, faults=[cut])]),
    ):
        shown = view(text)
        shown.set_viewport_size({"width": width, "height": 844})
        shown.evaluate("viewer.draw()")
        assert shown.evaluate("document.documentElement.scrollWidth") == width
        cut_off = """[...document.querySelectorAll("figcaption, h1, #headline, #banner")]
          .filter((e) => e.scrollWidth > e.clientWidth + 1).length"""
        assert shown.evaluate(cut_off) == 0


def test_executed_schedules_and_rings_are_a_click_away(view):
    topology = tp.dgx_h100(2, nvls=False)
    schedule = tacos.synthesize(topology, co.all_reduce(topology, "64MB"), engine="greedy")
    shown = view(page(schedule))
    shown.evaluate("viewer.select({kind: 'npu', id: 3})")
    shown.click("text=links shared")
    shown.wait_for_function("viewer.view.title === 'links shared'")
    took = shown.evaluate("viewer.runs[0].facts.time_s")
    times = tacos.execution.execution(schedule)
    assert times is not None
    assert took == pytest.approx(times.shared_ps * 1e-12)
    assert shown.evaluate("viewer.pick") == {"kind": "npu", "id": 3}  # the selection stays
    assert "share links fairly" in shown.inner_text("#banner")
    shown.click("text=NCCL's rings")
    shown.wait_for_function("viewer.view.rings")
    assert "8 rings through 16 NPUs" in panel(shown)
    before = shown.locator('[data-run="0"]').screenshot()
    shown.click("#panel button[data-ring='2']")
    shown.evaluate("viewer.draw()")
    assert shown.evaluate("viewer.ring") == 2
    assert shown.locator('[data-run="0"]').screenshot() != before
    assert not shown.is_visible("#slider")


def test_short_spans_of_a_timeline_share_their_pixels(view):
    """Thousands of short computations alternate; neither kind hides the other."""
    count = 20_000
    names = ["forward", "backward"] * (count // 2)
    work = from_nodes(1, rank=np.zeros(count, int), kind=COMP, duration_ps=1000, names=names)
    begin = 1000 * np.arange(count)
    shown = view(pictures.timeline_page(Timeline(work, begin, begin + 1000)))
    colours = """() => {
      viewer.draw();
      const canvas = viewer.canvas, x = Math.round((viewer.left + 200) * devicePixelRatio);
      const copy = new OffscreenCanvas(1, canvas.height).getContext("2d", {willReadFrequently: true});
      copy.drawImage(canvas, -x, 0);
      const data = copy.getImageData(0, 0, 1, Math.round(viewer.high * devicePixelRatio)).data;
      const rows = Array.from({length: data.length / 4}, (_, k) => data.slice(4 * k, 4 * k + 3).join());
      return [rows[Math.floor(0.3 * rows.length)], rows[Math.floor(0.7 * rows.length)]]; }"""
    upper, lower = shown.evaluate(colours)
    assert upper != lower


def test_a_training_step_is_a_timeline_with_its_collectives_one_click_away(view):
    model = training.Transformer(
        name="small", layers=2, hidden=2048, heads=16, ffn=8192, vocabulary=32000, sequence=2048
    )
    split = training.Parallelism(tp=4, pp=2, batch=4)
    step = training.step(model, split, tp.dgx_h100(1, nvls=False), collectives="ring")
    shown = view(pictures.step_page(step))
    assert shown.title().startswith("training step of small on 8 h100")
    assert not shown.is_visible("#slider")
    ranks = shown.evaluate("[...new Set(viewer.rows.map((row) => row.rank))]")
    assert ranks == list(range(8))
    # A click on a span says what it is.
    span = shown.evaluate("viewer.columns.span_view.findIndex((view) => view >= 0)")
    box = shown.locator("[data-timeline]").bounding_box()
    where = """(span) => { const c = viewer.columns, length = c.span_length[span];
      viewer.zoom(3 * length / (viewer.until - viewer.from), c.span_begin[span] + length / 2);
      viewer.draw();
      const r = viewer.rows.findIndex((row) => row.first <= span && span < row.end);
      return [viewer.x(c.span_begin[span] + length / 2), (r - viewer.top + 0.5) * viewer.high]; }"""
    x, y = shown.evaluate(where, span)
    shown.mouse.click(box["x"] + x, box["y"] + y)
    shown.evaluate("viewer.draw()")
    assert shown.evaluate("viewer.pick") == span
    text = " ".join(shown.inner_text("#panel").split())
    assert "all-reduce" in text
    assert "waited for" in text
    shown.click("#panel button.open")
    shown.wait_for_function("viewer.runs")
    assert shown.evaluate("viewer.runs[0].facts.collective") == "all-reduce"
    assert shown.is_visible("#slider")
    shown.click("#tabs button >> nth=0")
    shown.wait_for_function("viewer.rows")
    shown.fill("#find", "rank 5")
    shown.press("#find", "Enter")
    assert shown.evaluate("viewer.columns.span_rank[viewer.pick]") == 5
    for width in (1024, 390):
        shown.set_viewport_size({"width": width, "height": 844})
        assert shown.evaluate("document.documentElement.scrollWidth") == width


def test_flight_records_name_the_rank_that_fell_behind(view):
    def dump(rank, *states):
        calls = [{"seq": k + 1, "kind": "all-reduce", "algorithm": "ring", "bytes": 4000, "dtype": "float32", "op": "sum",
                  "begin_s": 1.0 + k, "end_s": 0.0 if state == "running" else 1.5 + k, "state": state, "error": "",
                  "waited_s": {}, "needs": [[1, "waits to receive from rank 1"]] if state == "running" else []}
                 for k, state in enumerate(states)]  # fmt: skip
        group = {"rank": rank, "members": [0, 1], "calls": calls}
        return {"rank": rank, "host": "a", "why": "", "clock_offset_s": 0.0, "written_s": 9.0, "groups": [group]}  # fmt: skip

    shown = view(pictures.flight_page([dump(0, "done", "running"), dump(1, "done")]))
    assert shown.inner_text("#headline").startswith("Rank 1 fell behind first")
    assert "under way" in shown.inner_text("#networks figcaption")
    shown.evaluate("viewer.select(1)")
    assert "needs waits to receive from rank 1" in panel(shown)
    shown.click("#panel button[data-span]")
    assert "state never started" in panel(shown)
    for width in (1024, 390):
        shown.set_viewport_size({"width": width, "height": 844})
        assert shown.evaluate("document.documentElement.scrollWidth") == width
