"""The backend of torch.distributed: everything against gloo, on 4 and on 8 processes."""

from __future__ import annotations

import importlib.util

import pytest

from tests.torch_ranks import Ranks

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed: pip install 'tacos-ccl[torch]'", allow_module_level=True)


@pytest.fixture(scope="module")
def started():
    """The ranks by their number, kept from test to test."""
    found: dict[int, Ranks] = {}
    yield found
    for ranks in found.values():
        ranks.close()
        assert ranks.alive() == []


@pytest.fixture(params=[4, 8], ids=lambda size: f"{size} ranks")
def ranks(started, request):
    size = request.param
    if size in started and started[size].broken:
        started.pop(size).close()
    if size not in started:
        started[size] = Ranks(size)
    return started[size]


@pytest.mark.parametrize(
    "job",
    [
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "rooted",
        "shapes",
        "everything_else",
        "asynchronous",
        "sub_groups",
        "ddp",
        "fsdp",
        "zero",
    ],
)
def test_the_result_is_gloos(ranks, job):
    ranks.run(job)
