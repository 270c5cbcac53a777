"""A reader of protobuf messages, independent of the core."""

from __future__ import annotations


def fields(data):
    """The fields of a message: (number, value) with bytes or whole numbers."""
    at = 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = number()
        if key % 8 == 0:
            yield key // 8, number()
        else:
            size = number() if key % 8 == 2 else {1: 8, 5: 4}[key % 8]
            yield key // 8, data[at : at + size]
            at += size
