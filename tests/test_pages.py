"""The runner of the manual's pages reports faults; the benchmarks page names the machine."""

from __future__ import annotations

import textwrap

import pytest

from benchmarks import report
from tests import pages

pytestmark = pytest.mark.unsanitized

PAGE = textwrap.dedent(
    """\
    <!-- file: net.yaml -->
    ```yaml
    tacos: 1
    base: ring:4
    ```

    ```console
    $ tacos topo net.yaml --json | grep npus     # a remark
      "npus": 4,
    ```

    ```python
    >>> number = 2
    >>> number + number
    4

    ```

    - a list

      <!-- not run: there is no such thing -->
      ```console
      $ no-such-command
      ```

    ```python
    assert number == 2
    ```
    """
)


def play(text, folder):
    names: dict[str, object] = {}
    for block in pages.blocks(text):
        pages.run(block, names, folder)


def test_a_good_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [block.language for block in pages.blocks(PAGE)] == [
        "yaml", "console", "python", "console", "python",
    ]  # fmt: skip
    play(PAGE, tmp_path)
    assert (tmp_path / "net.yaml").exists()


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ('"npus": 4', '"npus": 5', "expected"),
        ("4\n\n", "5\n\n", "Expected"),
        ("base: ring:4", "base: rink:4", "expected"),
        ("<!-- not run: there is no such thing -->", "<!-- a remark -->", "failed with code 127"),
        ("```console", "```sh", "commands as console"),
    ],
)
@pytest.mark.slow
def test_a_wrong_page_fails(tmp_path, monkeypatch, good, bad, message):
    monkeypatch.chdir(tmp_path)
    assert good in PAGE
    with pytest.raises(pages.PageError, match=message):
        play(PAGE.replace(good, bad, 1), tmp_path)


def test_a_script_that_fails_fails(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError):
        play(PAGE.replace("assert number == 2", "assert number == 3"), tmp_path)


def test_figures_are_left_out_only_where_the_page_says_so():
    assert not pages.agree("synthesis 3 ms\n", "synthesis 12.5 us\n", figures_vary=False)
    assert pages.agree("synthesis 3 ms\n", "synthesis   12.5 us\n", figures_vary=True)
    assert pages.agree("1,024 chunks, 99.5 %\n", "64 chunks, 99.8 %\n", figures_vary=True)
    assert not pages.agree("busbw 3 GB/s\n", "algbw 3 GB/s\n", figures_vary=True)
    assert pages.agree("\n", "anything\n", figures_vary=False)


def test_a_page_is_renewed_where_it_differs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert pages.renewed(PAGE.replace('"npus": 4', '"npus": 5'), tmp_path) == PAGE


def test_the_page_of_benchmarks_says_what_was_measured_where():
    results = [
        report.Result("bound", "a  b\n1  2\n", ""),
        report.Result("milp", "", "failed with code 1"),
    ]
    text = report.page(results)
    assert report.machine() in text
    assert "```text\na  b\n1  2\n```" in text
    assert "It failed with code 1." in text
    others = {
        "charts",
        "report",
        "gpu",
        "reality",
        "training_fit",
    }  # they need a GPU or public measurements, or measure nothing
    assert set(report.NAMES) == {path.stem for path in report.HERE.glob("*.py")} - others
