"""An MSCCL file by hand, and programs written and read again."""

from __future__ import annotations

from pathlib import Path

import tacos

EXCHANGE = """<algo name="swap" proto="LL" nchannels="1" nchunksperloop="2" ngpus="2" coll="allreduce"
      inplace="1" outofplace="0" minBytes="0" maxBytes="1024">
  <gpu id="0" i_chunks="2" o_chunks="0" s_chunks="0">
    <tb id="0" send="1" recv="1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="rrcs" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="1"/>
      <step s="2" type="r" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
    <tb id="1" send="-1" recv="-1" chan="0">
      <step s="0" type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0" depid="0" deps="1" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="2" o_chunks="0" s_chunks="0">
    <tb id="0" send="0" recv="0" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="rrcs" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="2" type="r" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
</algo>
"""


def loaded(folder, *changes):
    """The file above after some replacements."""
    text = EXCHANGE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path = folder / "swap.xml"
    path.write_text(text)
    return tacos.load(path, format="msccl")


def saved(obj, folder, **options):
    path = Path(folder) / "some.xml"
    tacos.save(obj, path, **options)
    return tacos.load(path)
