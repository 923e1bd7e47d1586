"""More processes than a scan follows: those that it knows stay whole, and it says what it could not take."""

from __future__ import annotations

from pathlib import Path

from psmkit.logparse import scan

MOST = 1 << 17  # LS_MAX_PROCS


def line(host: int, tid: int) -> bytes:
    return b"node%d:7%05d:%d [0] NCCL INFO cudaDriverVersion 12090\n" % (host, host % 100000, tid)


def test_what_a_scan_knows_stays_whole_when_more_processes_come(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    with path.open("wb") as file:
        file.writelines(line(host, 1) for host in range(MOST + 10))
        file.write(line(0, 2))  # another thread of the first one
        file.write(line(MOST + 3, 2))
    result = scan([str(path)])
    try:
        assert len(result.processes) == MOST
        assert result.processes[0].lines == 2
        assert len(result.threads) == MOST + 1
        assert result.totals.lines == MOST + 12
        assert any("11 lines of processes beyond the first 131,072 were read without" in n for n in result.notes), (
            result.notes
        )
    finally:
        result.close()
