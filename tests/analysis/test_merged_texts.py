"""One title for several lines says so where they differ, and lines with different numbers of errors get findings of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.texts import analyzed

_WARN = "\nn0:7{0}:8{0} [{0}] {1} NCCL WARN {2}\n"
_STEP = "n0:7{0}:8{0} [{0}] NCCL INFO {1} -> {2}\n"
_UCX = "[1784273406.684686] [node7:471{}:0]      ib_mlx5_dv.c:452  UCX  ERROR   {}\n"


def _cuda(*errors: str) -> str:
    return "".join(f"[rank{rank}]: RuntimeError: CUDA error: {error}\n" for rank, error in enumerate(errors))


def _thrown(*errors: str) -> str:
    return "".join(f"[rank{rank}]: {error}\n" for rank, error in enumerate(errors))


def _ucx(*errors: str) -> str:
    return "".join(_UCX.format(n, error) for n, error in enumerate(errors))


def _warned(*errors: str) -> str:
    return "".join(_WARN.format(rank, "odd.cc:7", error) for rank, error in enumerate(errors))


@pytest.mark.parametrize(
    ("lines", "one", "other"),
    [
        (_cuda, "an illegal memory access was encountered", "invalid device ordinal"),
        (_thrown, "ValueError: bad shard", "KeyError: 'x'"),
        (_ucx, "create_cq failed: Cannot allocate memory", "create_qp failed: Remote I/O error"),
        (_warned, "3 widgets are gone", "5 widgets are gone"),
    ],
)
def test_a_title_of_several_processes_says_that_their_lines_differ(lines, one: str, other: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    differ, agree = (
        " ".join(f.title for f in analyzed(tmp_path, lines(*texts)).findings) for texts in ((one, other), (one, one))
    )
    assert f"{one} (the text of the other one differs)" in differ
    assert one in agree and "differ" not in agree


@pytest.mark.parametrize("pointer", ["0x7f2b8c0701b8", "10.0.0.5<4711>"])
def test_pointers_and_ports_make_no_difference(pointer: str, tmp_path: Path) -> None:
    other = pointer.replace("7", "8")
    titles = " ".join(
        f.title for f in analyzed(tmp_path, _warned(f"widget {pointer} is gone", f"widget {other} is gone")).findings
    )
    assert "n0:70 and n0:71 warned: " in titles and "differ" not in titles


def test_errors_with_different_codes_are_different_errors(tmp_path: Path) -> None:
    text = "Got completion from peer 10.0.0.9<4791> with status={} opcode=0 len=0 vendor err {}"
    log = "".join(
        _WARN.format(rank, "transport/net_ib.cc:788", "NET/IB : " + text.format(status, 129))
        + _STEP.format(rank, "transport/net.cc:1298", 6)
        for rank, status in ((0, 12), (1, 13))
    )
    titles = [f.title for f in analyzed(tmp_path, log).findings]
    assert any("n0:70 " in t and "status=12" in t and "n0:71" not in t for t in titles), titles
    assert any("n0:71 " in t and "status=13" in t and "n0:70" not in t for t in titles), titles
