"""Reading MSCCL files: correct ones verify, wrong ones are explained.

Real files are read from the directory that TACOS_TEST_DATA names; without it, that test is skipped.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from functools import partial

import pytest

import tacos
from tacos.errors import FormatError
from tacos.formats import msccl
from tacos.program import STEP_OPS
from tests.support import program_oracle
from tests.support.msccl_files import EXCHANGE, loaded, saved
from tests.support.real_files import real_files


@pytest.fixture
def exchange(tmp_path):
    return partial(loaded, tmp_path)


def test_an_exchange_of_two(exchange):
    """By hand: each GPU sends one half, sums the other half and sends the sum back."""
    program = exchange()
    assert [STEP_OPS[op] for op in program.op] == (
        ["send", "recv_reduce_send", "recv", "nop", "send", "recv_reduce_send", "recv"]
    )
    assert program.comes_from.tolist() == [-1, 4, 5, -1, -1, 0, 1]
    assert program.thread_begin.tolist() == [0, 3, 4, 7]
    assert program.dep.tolist() == [1]
    assert program.in_place
    assert program.provenance == {
        "format": "msccl", "dialect": "azure", "name": "swap", "protocol": "LL", "inplace": True,
        "outofplace": False, "min_bytes": 0, "max_bytes": 1024,
    }  # fmt: skip
    assert tacos.verify(program).ok
    assert program_oracle.run(program, random.Random(0)) == []


@pytest.mark.parametrize(
    ("change", "rule", "message"),
    [
        (('type="rrcs" srcbuf="i" srcoff="1"', 'type="rrs" srcbuf="i" srcoff="1"'), "contribution",
         "output slot 1 of rank 0, for chunk 1, lacks the contribution of rank 1"),
        (('type="rrcs"', 'type="rcs"'), "contribution",
         "output slot 1 of rank 0, for chunk 1, lacks the contribution of rank 0"),
        (('type="rrcs" srcbuf="i" srcoff="1"', 'type="rrcs" srcbuf="i" srcoff="0"'), "contribution",
         "output slot 1 of rank 0, for chunk 1, lacks the contribution of rank 0 and contains other"),
        (('type="s" srcbuf="i" srcoff="0"', 'type="nop" srcbuf="i" srcoff="0"'), "unmatched",
         "rank 1, thread 0, step 2 waits for a message from rank 0 that is never sent"),
        (('type="r" ', 'type="nop" '), "unmatched",
         "rank 1, thread 0, step 1 sends a message to rank 0 that is never received"),
        (('chan="0"', 'chan="1"'), "unmatched", "waits for a message from rank"),
        (('depid="-1" deps="-1" hasdep="1"', 'depid="1" deps="0" hasdep="1"'), "deadlock",
         "wait for each other"),
        (('type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0"',
          'type="cpy" srcbuf="i" srcoff="1" dstbuf="i" dstoff="0" cnt="1"'), "race", "may be"),
        (('type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0"',
          'type="re" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1"'), "contribution",
         "counts ranks 0, 1 more than once"),
    ],
)  # fmt: skip
def test_broken_variants_are_explained(exchange, change, rule, message):
    extra = [('hasdep="0"/>\n    </tb>\n    <tb id="1"', 'hasdep="0"/>\n    </tb>\n    <tb id="1"')]
    if 'depid="1"' in change[1]:
        extra = [('cnt="0" depid="0" deps="1" hasdep="0"', 'cnt="0" depid="0" deps="1" hasdep="1"')]
    if change[0].startswith("chan"):
        extra = [('nchannels="1"', 'nchannels="2"')]
    report = tacos.verify(exchange(change, *extra))
    assert [v for v in report.violations if v.rule == rule and message in v.message], [
        (v.rule, v.message) for v in report.violations
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("<algo", "<algorithm"), "line 1: unexpected element algorithm as the root; it must be algo"),
        (("</algo>", ""), "line 21: not XML: no element found"),
        (("<algo", '<!DOCTYPE a [<!ENTITY b "c">]>\n<algo'),
         "line 1: a document type declaration is not supported"),
        (('ngpus="2"', 'ngpus="3"'), "there are 2 gpu elements; ngpus is 3"),
        (('ngpus="2"', ""), 'line 1: the algo has no field "ngpus"'),
        (('proto="LL"', 'proto="LL64"'),
         'line 1: the algo\'s field proto is "LL64"; it must be one of Simple, LL, LL128'),
        (('coll="allreduce"', 'coll="sum"'), 'line 1: the algo\'s field coll is "sum"; it must be one of '),
        (('coll="allreduce"', 'coll="custom"'),
         "line 1: the algo's field coll is custom, which does not define a result; use one of"),
        (('nchunksperloop="2"', 'nchunksperloop="x"'),
         'line 1: the algo\'s field nchunksperloop is "x"; it must be a number'),
        (('nchunksperloop="2"', 'nchunksperloop="99999"'),
         "line 1: the algo's field nchunksperloop is 99999; it must be 1 to 32768"),
        (('maxBytes="1024"', 'maxBytes="1KB"'), 'line 1: the algo\'s field maxBytes is "1KB"; it must be a number'),
        (('inplace="1"', 'inplace="2"'), "line 1: the algo's field inplace is 2; it must be 0 to 1"),
        (('i_chunks="2"', 'i_chunks="3"'), "line 3: the gpu's field i_chunks is 3; it must be 0 or 2"),
        (('<gpu id="1"', '<gpu id="2"'), "line 13: the gpu's field id is 2; it must be 1"),
        (('send="1"', 'send="0"'), "line 4: the tb's field send is 0, its own gpu"),
        (('send="1"', 'send="2"'), "line 4: the tb's field send is 2; it must be -1 to 1"),
        (('send="1"', 'send="-1"'),
         "line 5: gpu 0, tb 0, step 0: the type is s, but the tb's field send is -1"),
        (('chan="0"', 'chan="1"'), "line 4: the tb's field chan is 1; it must be 0 to 0"),
        (('<tb id="1" send="-1"', '<tb id="1" send="1"'),
         "line 9: gpu 0: the tbs 0 and 1 both have send 1 on channel 0; only one may"),
        (('<step s="1"', '<step s="2"'), "line 6: the step's field s is 2; it must be 1"),
        (('type="rrcs"', 'type="ra"'), 'line 6: the step\'s field type is "ra"; it must be one of nop, cpy'),
        (('srcbuf="i"', 'srcbuf="x"'), 'line 5: the step\'s field srcbuf is "x"; it must be one of i, o, s'),
        (('srcbuf="i" srcoff="0"', 'srcbuf="o" srcoff="0"'),
         "line 5: gpu 0, tb 0, step 0: the field srcoff is 0; with cnt 1, that is outside of"),
        (('cnt="1"', 'cnt="0"'), "line 5: gpu 0, tb 0, step 0: the field cnt is 0; it must be positive"),
        (('cnt="1" ', ""), 'line 5: the step has no field "cnt"'),
        (('depid="0"', 'depid="2"'),
         "line 10: gpu 0, tb 1, step 0: the field depid is 2; it must be a tb of the gpu"),
        (('deps="1"', 'deps="3"'),
         "line 10: gpu 0, tb 1, step 0: the field deps is 3; it must be a step of tb 0"),
        (('hasdep="1"', 'hasdep="0"'),
         "line 6: gpu 0, tb 0, step 1: the field hasdep is 0; it must be 1, since another step waits for this one"),
        (("<step", "<copy"), "line 5: unexpected element copy inside tb; it must be step"),
    ],
)  # fmt: skip
def test_wrong_files_say_where(exchange, change, message):
    with pytest.raises(FormatError, match=re.escape(f"swap.xml: {message}")):
        exchange(change)


@pytest.mark.parametrize("path", real_files("msccl-xml/*.xml"))
def test_files_of_other_tools_are_proven_and_written_again(path, tmp_path):
    program = tacos.load(path)
    assert tacos.verify(program).ok
    assert msccl.exceeded(program, program.provenance["dialect"]) == []
    if program.steps < 1000:
        assert program_oracle.run(program, random.Random(0)) == []
    for dialect in (None, "msccl", "azure"):
        again = saved(program, tmp_path, dialect=dialect)
        assert again == program
        assert again.provenance["name"] == program.provenance["name"]
    # Two instances split its blocks into pieces that are all sent before any arrives.
    if "recdoub" in path.stem:
        with pytest.raises(FormatError, match="would wait forever, since a connection"):
            saved(program, tmp_path, instances=2)
        return
    copies = saved(program, tmp_path, instances=2)
    assert tacos.verify(copies).ok
    assert copies.steps == 2 * program.steps


def test_a_mutated_file_is_read_or_refused_with_its_name(tmp_path):
    """600 random mutations; the verifier takes those that are read without an exception."""
    path = tmp_path / "mutant.xml"
    source = random.Random(5)
    pieces = re.findall(r'"[^"]*"|[a-z_]+|[<>/=]|\s+', EXCHANGE)
    values = [i for i, piece in enumerate(pieces) if piece[0] == '"']
    outcomes: Counter[str] = Counter()
    for _ in range(600):
        words = list(pieces)
        for _ in range(source.choice([1, 1, 2, 4])):
            if source.random() < 0.7:
                new = source.choice([words[source.choice(values)], '"-1"', '"7"', '"2147483648"'])
                words[source.choice(values)] = new
            else:
                new = source.choice([source.choice(words), "", "&x;", "é", '"'])
                words[source.randrange(len(words))] = new
        text = "".join(words)
        path.write_text(text[: source.randrange(len(text))] if source.random() < 0.1 else text)
        try:
            program = tacos.load(path)
        except FormatError as error:
            outcomes["refused" if str(error).startswith(f"{path}: ") else "unnamed"] += 1
        else:
            tacos.verify(program)
            outcomes["read"] += 1
    assert set(outcomes) == {"read", "refused"}
    assert min(outcomes.values()) > 50


def test_entity_bombs_do_nothing(tmp_path):
    entities = "".join(f'<!ENTITY e{i + 1} "&e{i};&e{i};&e{i};&e{i};">' for i in range(40))
    path = tmp_path / "bomb.xml"
    path.write_text(f'<!DOCTYPE algo [<!ENTITY e0 "x">{entities}]><algo name="&e40;"/>')
    with pytest.raises(FormatError, match="line 1: a document type declaration"):
        tacos.load(path, format="msccl")
    with pytest.raises(
        FormatError,
        match="the content does not match any of the formats nccl, msccl, forestcoll, graphml",
    ):
        tacos.load(path)
