"""The simulator prints legal logs: deterministic, causal, and of the shapes that real logs have."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from psmkit.model import CODES
from tests.loggen import DIALECTS, generate, scenario_names
from tests.loggen.stream import stream

LOGS = Path(__file__).parent / "data" / "logs"
HOLES = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|/dev/shm/nccl-\w+|-?\d+(\.\d+)?")
# What the simulated machines have and the machine of the real logs had not.
ELSEWHERE = re.compile(r"eth0|NET/IB|NVLS|affinity for GPU|Connected all rings|Trees|AllReduce|AllGather|opCount [a-f]")


def shape(line: str) -> str:
    return HOLES.sub("#", re.sub(r"^.*?NCCL (INFO|WARN) ", r"\1 ", line))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_same_seed_makes_the_same_log(dialect: str) -> None:
    first = generate("healthy_both", dialect, seed=4).merged()
    assert first == generate("healthy_both", dialect, seed=4).merged()
    assert first != generate("healthy_both", dialect, seed=5).merged()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_answers_come_after_their_requests(dialect: str) -> None:
    served: Counter[str] = Counter()
    asked: set[str] = set()
    for line in generate("healthy_eight_ranks", dialect).lines:
        if done := re.search(r"proxyProgressAsync opId=(\S+)", line.text):
            served[done[1]] += 1
        elif got := re.search(r"Received new opId=(\S+)", line.text):
            served[got[1]] -= 1
            assert served[got[1]] >= 0, line
        elif call := re.search(r"ProxyCall UDS .*opId 0x(\w+)$", line.text):
            asked.add(call[1])
        elif done := re.search(r"UDS proxyGetFd received .*opId (\w+)$", line.text):
            assert done[1] in asked
    assert not +served


def test_lines_have_the_shapes_of_real_ones() -> None:
    real = {
        shape(line)
        for name in ("ok_n4_psm_64K", "ok_n4_2nodes_psmnet")
        for f in (LOGS / name).iterdir()
        for line in f.read_text().splitlines()
    }
    strange = [
        line.text
        for line in generate("healthy_sendrecv", "passsm").lines
        if shape(line.text) not in real and not ELSEWHERE.search(line.text)
    ]
    assert not strange


def test_stream_is_a_whole_job_of_the_size_that_was_asked_for() -> None:
    data = b"".join(stream(1_000_000, seed=3, ranks=16))
    assert 1_000_000 <= len(data) < 1_200_000
    assert data.count(b"Init COMPLETE") == data.count(b"Destroy COMPLETE") == 16
    ops = Counter(re.findall(rb"opId=(0x\w+)", data))
    assert len(ops) > 500
    assert data.count(b"- DONE") * 2 == len(re.findall(rb"ProxyCall UDS", data))
    assert data == b"".join(stream(1_000_000, seed=3, ranks=16))


def test_every_fault_leaves_its_mark() -> None:
    for name, dialect in scenario_names():
        log = generate(name, dialect)
        ended = log.merged().count("Destroy COMPLETE")
        outlasts = any(CODES[code].outlasts_end for code in log.truth.codes)  # the job ends, with wrong data
        well = log.truth.verdicts[0] in ("healthy", "leaking")
        assert well <= (ended > 0) <= (well or outlasts), (name, dialect)
