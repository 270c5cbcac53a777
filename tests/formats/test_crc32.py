"""Our CRC-32 is that of zlib, for any length, alignment and beginning."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from tacos._core import crc32

LENGTHS = (0, 1, 15, 16, 17, 63, 64, 65, 79, 80, 127, 128, 129, 1000)


@given(
    data=st.binary(max_size=300),
    length=st.sampled_from(LENGTHS),
    skipped=st.integers(0, 20),
    before=st.integers(0, 2**32 - 1),
)
def test_it_is_that_of_zlib(data, length, skipped, before):
    repeated = (data or b"\0") * 1100
    view = memoryview(repeated)[skipped : skipped + length]
    assert crc32(view, before) == zlib.crc32(view, before)


def test_pieces_add_up():
    data = bytes(range(256)) * 40
    whole = crc32(data)
    assert whole == zlib.crc32(data)
    for cut in (0, 1, 64, 100, 5000, len(data)):
        assert crc32(data[cut:], crc32(data[:cut])) == whole
