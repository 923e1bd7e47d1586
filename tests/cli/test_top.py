"""`psmkit top` over record files: numbers, findings, exit status."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from psmkit.cli.app import main
from psmkit.cli.top import _Sources, frame
from psmkit.cli.top_lab import LabJob, show_jobs
from psmkit.lab.running import RunningJob, RunningRank
from psmkit.model.programs import tree
from psmkit.report.layout import Page
from psmkit.telemetry.online import Limits
from psmkit.telemetry.overview import CommunicatorView
from tests.lab.hanging import hanging_run
from tests.telemetry import made


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningJob]:
    with hanging_run(tmp_path_factory.mktemp("lab") / "run") as job:
        yield job


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "records"
    place.mkdir(mode=0o700)
    return place


def test_a_job_that_works_is_shown_with_its_rates_and_links(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made.ring(folder, 4, 20)
    assert main(["top", "--dir", str(folder), "--count", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("nothing wrong: 1 communicator, 4 ranks here, ")
    assert "communicator 0xc0ffee world: 4 of 4 ranks are here, 4 nodes" in out
    assert "19.1 us" in out and "10.00 GB/s" in out and "2 -> 3" in out


def test_a_step_that_stands_still_is_followed_to_its_rank(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    since = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - 60 * 10**9
    for rank in range(3):
        comm = made.Comm(rank, 3, context=rank + 1)
        op = comm.add(made.PROXY_OP_T, since, flags=made.SENDS if rank == 0 else 0, peer=(rank - 1) % 3, steps=2)
        state = 8 if rank == 0 else 10  # the GPU of rank 0 does not come; the others wait for data
        flags = made.SENDS if rank == 0 else 0
        comm.add(made.STEP_T, since, state=state, parent=op, flags=flags, peer=(rank - 1) % 3, step=1)
        comm.write(folder)
    assert main(["top", "--dir", str(folder), "--count", "2", "--interval", "0.1", "--format", "json"]) == 1
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    for look in (first, second):
        [found] = look["findings"]
        assert (found["code"], found["culprits"], found["stage"]) == ("PSM931", [0], "SendGPUWait")
        assert [rank["open"] for rank in look["communicators"][0]["ranks"]] == [2, 2, 2]
    assert main(["top", "--dir", str(folder), "--count", "1", "--stall", "100"]) == 0


def test_no_telemetry_is_not_called_healthy_and_the_settings_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--dir", str(folder), "--count", "1"]) == 3
    out = capsys.readouterr().out
    assert out.startswith("nothing here reports telemetry; no job of the lab runs\n") and "nothing wrong" not in out
    settings = [line.split() for line in out.splitlines() if "export" in line]
    assert settings == [
        ["export", f"NCCL_PROFILER_PLUGIN={tree() / 'lib' / 'libnccl-profiler-psm.so'}"],
        ["export", f"PSM_RECORD_DIR={folder}"],
    ]
    assert main(["top", "--dir", str(folder), "--count", "1", "--format", "json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert (document["telemetry"], document["lab"], document["communicators"]) == (False, [], [])


def test_a_job_of_the_lab_is_shown_with_what_its_ranks_wait_for(
    hanging: RunningJob, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--dir", str(hanging.records), "--count", "1", "--stall", "0.1"]) == 3
    out = capsys.readouterr().out
    assert out.startswith("nothing here reports telemetry; 1 job of the lab runs\n")
    assert f"\npsmkit lab run, process {hanging.runner}, for " in out and " s: 3 of 3 ranks are alive\n" in out
    assert f"\n  in {hanging.folder}\n" in out
    rows = [line.split() for line in out.splitlines() if " runs " in line]
    assert ["send", "to", "1,"] in [row[5:8] for row in rows]
    assert "The ranks of psmkit lab run are not NCCL's" in out
    assert main(["top", "--dir", str(hanging.records), "--count", "1", "--format", "json"]) == 3
    [job] = json.loads(capsys.readouterr().out)["lab"]
    assert (job["kind"], job["started"], [rank["rank"] for rank in job["ranks"]]) == ("lab run", 3, [0, 1, 2])
    assert {rank["open"]["peer"] for rank in job["ranks"] if rank["open"]} == {1}


def test_a_job_of_the_lab_elsewhere_is_not_shown_beside_another_record_directory(
    folder: Path, hanging: RunningJob, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--dir", str(folder), "--count", "1", "--format", "json"]) == 3
    assert json.loads(capsys.readouterr().out)["lab"] == []
    main(["top", "--count", "1", "--format", "json"])
    assert hanging.runner in [job["runner"] for job in json.loads(capsys.readouterr().out)["lab"]]


def test_ranks_of_the_lab_without_telemetry_are_counted_beside_those_with_it() -> None:
    view = CommunicatorView(1, "", 1, 1, (), ())
    job = RunningJob("lab run", 5, 9.0, None, 1, (RunningRank(0, 7, "runs", 3.0, ""),))
    assert (
        frame([view], [], 140, [LabJob(job, {})])
        .text()
        .splitlines()[0]
        .endswith("; 1 rank of the lab reports no telemetry")
    )


def test_a_run_of_the_lab_is_read_while_it_goes_on(folder: Path) -> None:
    made.ring(folder, 2, 5)
    with _Sources(Limits()) as sources:
        sources.follow([folder, folder / "none"])
        [(views, _)] = sources.look(None)
        assert len(views[0].ranks) == 2
        sources.follow([])
        assert sources.look(1.0) == []


def test_text_of_a_log_does_not_reach_the_terminal_as_it_is() -> None:
    rank = RunningRank(0, 7, "stopped", 3.0, "h:7:7 [0] NCCL INFO \x1b[2J\u202eowned")
    page = Page(100)
    show_jobs(page, [LabJob(RunningJob("lab run", 5, 9.0, Path("/x\x1b[0m"), 1, (rank,)), {})], 10)
    text = page.text()
    assert "\x1b" not in text and "\u202e" not in text and "its log: \\x1b[2J" in text
    assert any(span.style == "warning" and "stopped" in span.text for line in page.lines for span in line)


def test_no_process_ever_wrote_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PSM_RECORD_DIR", str(tmp_path / "none"))
    assert main(["top", "--count", "1"]) == 3
    assert "nothing here reports telemetry" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()
    assert main(["top", "--dir", str(tmp_path / "none"), "--count", "1"]) == 2
    assert "No such file" in capsys.readouterr().err


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o777)
    assert main(["top", "--dir", str(place), "--count", "1"]) == 2
    assert str(place) in capsys.readouterr().err
