"""The engine on a local dask cluster: the same report, whatever workers do."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import psmkit
from psmkit.cluster import Engine, connected, engine, tasks
from psmkit.cluster.tasks import movable
from psmkit.logparse import scan
from psmkit.logparse.joined import TooMuchError
from psmkit.model.errors import InputError, PsmkitError
from psmkit.report import render
from tests.cluster import lost
from tests.loggen import generate
from tests.loggen.crowd import FAULTY, write_files

pytest.importorskip("distributed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

BIN = Path(sys.executable).parent
STACKS = 'Current thread 0x00007f0000000000 (most recent call first):\n  File "/t/train.py", line 3 in step\n  File "/t/train.py", line 9 in <module>\n'


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deaths")


@pytest.fixture(scope="module")
def cluster(deaths: Path) -> Iterator[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(lost.DEATHS, str(deaths))
        for limit in ("_PATIENCE", "_CONNECT"):  # on a busy machine a worker needs minutes to start again
            patch.setattr(engine, limit, 900.0)
        with connected(workers=2) as found:
            yield found


@pytest.fixture
def small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small logs are shared out, too."""
    monkeypatch.setattr(engine, "_LEAST", 1)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    write_files(folder, "abort", 32, 1 << 20)
    return folder


def report(path: Path | str, reads: Any = scan) -> str:
    return render(psmkit.analyze([str(path)], engine=reads), "json")


@pytest.mark.parametrize("scenario", ["healthy_registrations", "answer_lost", "other_count", "segfault_at_work"])
def test_the_report_is_that_of_the_local_engine(
    cluster: Engine, small_shares: None, tmp_path: Path, scenario: str
) -> None:
    for file, text in generate(scenario, "2.27", seed=3).files().items():
        (tmp_path / file).write_text(text)
    assert report(tmp_path, cluster.scan) == report(tmp_path)


def test_a_job_of_many_hosts_names_its_faulty_rank(cluster: Engine, small_shares: None, job: Path) -> None:
    found = report(job, cluster.scan)
    assert found == report(job)
    assert FAULTY in json.loads(found)["culprits"] or str(FAULTY) in json.dumps(json.loads(found)["culprits"])


def test_heads_that_workers_read_are_those_read_here(
    cluster: Engine, small_shares: None, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_HEADS_AT_ONCE", 10)
    assert report(job, cluster.scan) == report(job)


def test_members_of_archives_and_compressed_files_are_read(cluster: Engine, small_shares: None, job: Path) -> None:
    packed = job.parent / "packed"
    packed.mkdir()
    files = sorted(job.iterdir())
    with tarfile.open(packed / "a.tar", "w") as archive:
        for file in files[:8]:
            archive.add(file, file.name)
    with tarfile.open(packed / "b.tar.gz", "w:gz") as archive:
        for file in files[8:]:
            archive.add(file, file.name)
    assert {movable(item) for item in psmkit.logparse.discover([packed])} == {True, False}
    assert report(packed, cluster.scan) == report(packed)


def test_the_work_of_a_worker_that_dies_is_done_again(
    cluster: Engine, small_shares: None, job: Path, deaths: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "part", lost.once)
    assert report(job, cluster.scan) == report(job)
    assert (deaths / "first").exists()


def test_workers_that_always_die_are_an_error(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dask = pytest.importorskip("dask")
    monkeypatch.setattr(tasks, "part", lost.always)
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        connected(workers=1) as found,
        pytest.raises(PsmkitError, match="died"),
    ):
        report(job, found.scan)


def test_a_worker_with_another_psmkit_is_an_error(cluster: Engine, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "part", lost.other_version)
    with pytest.raises(PsmkitError, match="another version of psmkit: install the same one on all machines"):
        report(job, cluster.scan)


def test_a_job_beyond_the_bounds_of_one_scan_is_read_here(
    cluster: Engine, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_much(_parts: object) -> None:
        raise TooMuchError("procs")

    monkeypatch.setattr(engine, "related", too_much)
    assert report(job, cluster.scan) == report(job)


def test_standard_input_is_read_here(job: Path) -> None:
    command = [str(BIN / "psmkit"), "analyze", "-", "--format", "json"]
    log = b"".join(file.read_bytes() for file in sorted(job.glob("*.log")))
    ours, here = (
        subprocess.run([*command, *more], input=log, capture_output=True, timeout=900)
        for more in (["--engine", "dask"], [])
    )
    assert ours.stderr == b"" and ours.stdout == here.stdout


def test_inputs_that_are_no_logs_need_no_worker(cluster: Engine, tmp_path: Path) -> None:
    (tmp_path / "stacks.txt").write_text(STACKS)
    assert report(tmp_path, cluster.scan) == report(tmp_path)


def test_messages_of_a_user_reach_the_workers(cluster: Engine, small_shares: None, job: Path) -> None:
    mine = job.parent / "mine.toml"
    mine.write_text(
        '[[message]]\nname = "mine.count"\nsubsystem = "core"\npatterns = ["my counter is {n:int}"]\nmeaning = "A counter."\nkeep = "all"\n'
    )
    for file in job.glob("*.log"):
        with file.open("a") as more:
            more.write("node0:6001:6001 [0] NCCL INFO my counter is 7\n")
    found = cluster.scan([str(job)], catalogue=[mine])
    here = scan([str(job)], catalogue=[mine])
    assert len(found.events.rows(["mine.count"])) == len(here.events.rows(["mine.count"])) > 0


def test_a_file_that_workers_cannot_read_is_named(
    cluster: Engine, small_shares: None, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = tasks.request

    def elsewhere(*given: Any) -> bytes:
        return read(*given).replace(b"/job/", b"/gone/")

    monkeypatch.setattr(tasks, "request", elsewhere)
    with pytest.raises(InputError, match=r"gone.*no such file"):
        report(job, cluster.scan)


def test_no_scheduler_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_CONNECT", 1.0)
    with pytest.raises(PsmkitError, match="no dask scheduler answers at tcp://127"), connected("tcp://127.0.0.1:9"):
        pass


def test_a_scheduler_without_workers_is_an_error(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed

    monkeypatch.setattr(engine, "_PATIENCE", 1.0)
    with (
        distributed.LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0") as empty,
        connected(empty.scheduler_address) as found,
        pytest.raises(PsmkitError, match="has no worker"),
    ):
        found.scan([str(job)])


def test_the_command_says_the_same_with_a_scheduler(cluster: Engine, job: Path) -> None:
    address = cluster._client.scheduler.address
    command = [str(BIN / "psmkit"), "analyze", str(job), "--format", "json"]
    ours, here = (
        subprocess.run([*command, *more], capture_output=True, timeout=900)
        for more in (["--engine", "dask", "--scheduler", address], [])
    )
    assert ours.stderr == b"" and ours.stdout == here.stdout and ours.returncode == here.returncode


def test_nothing_stays_behind(job: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    done = subprocess.run(
        [str(BIN / "psmkit"), "analyze", "--engine", "dask", str(job), "--format", "json"],
        capture_output=True,
        timeout=900,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    assert done.stderr == b"" and done.stdout.decode() == report(job)
    assert list(scratch.iterdir()) == []


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An object store on loopback, as a client of boto."""
    s3fs = pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    settings = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "AKIATEST",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()  # those of other addresses
    try:
        yield boto3.client("s3", endpoint_url=url)
    finally:
        server.stop()


def test_logs_are_read_from_an_object_store(store: Any, small_shares: None, job: Path) -> None:
    store.create_bucket(Bucket="runs")
    for file in sorted(job.iterdir()):
        store.upload_file(str(file), "runs", f"monday/{file.name}")
    store.put_object(Bucket="runs", Key="monday/.hidden", Body=b"node0:1:1 [0] NCCL INFO hidden")
    url = "s3://runs/monday"
    from_store = report(url)
    assert json.loads(from_store)["findings"] and "hidden" not in from_store
    assert from_store.replace(f"{url}/", "") == report(job).replace(f"{job}/", "")
    with connected(workers=2) as found:
        assert report(url, found.scan) == from_store
        assert report(f"{url}/*.log", found.scan) == report(f"{url}/*.log")


def test_an_archive_in_an_object_store_is_read(store: Any, job: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(job, "job")
    store.create_bucket(Bucket="runs")
    store.put_object(Bucket="runs", Key="job.tar.gz", Body=packed.getvalue())
    assert json.loads(report("s3://runs/job.tar.gz"))["verdict"] == json.loads(report(job))["verdict"]


def test_what_is_missing_in_a_store_is_named(store: Any) -> None:
    store.create_bucket(Bucket="runs")
    for url, why in (
        ("s3://runs/nothing/", "no file is there"),
        ("s3://runs/*.log", "no file matches"),
        ("s3://other/x.log", "no such|no file"),
    ):
        with pytest.raises(InputError, match=why) as caught:
            report(url)
        assert "hunter2" not in str(caught.value)
