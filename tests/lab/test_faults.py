"""Faults of the lab: a wrong one starts no rank, and one that never fired is not "good"."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from psmkit.cli.app import main
from psmkit.lab import elf, faults, transfer
from psmkit.lab.cuda import LabError
from psmkit.lab.emulation import Emulation
from psmkit.model.statuses import STATUSES
from psmkit.proxy import Status
from psmkit.testing import Ranks


def run(folder: Path, *arguments: str) -> int:
    return main(["lab", "run", "--ranks", "2", "--size", "4K", "--deadline", "60", "--out", str(folder), *arguments])


@pytest.mark.parametrize(
    ("text", "character", "said"),
    [
        ("p2p.proxy.setup:error,rank=0", 22, "expected '=' and a value after error"),
        ("p2p.nosuch:error", 1, "no site 'p2p.nosuch'; the nearest are"),
        ("p2p.setup:hang; p2p.nosuch:explode", 17, "no site 'p2p.nosuch'; the nearest are"),
        ("p2p.setup:error=EFOO", 1, "p2p.setup knows no error EFOO; it knows INVALID, NO_MEMORY,"),
        (
            "p2p.setup:hang;net.isend:error=ENOSPC",
            16,
            "net.isend knows no error ENOSPC; it knows ncclUnhandledCudaError,",
        ),
        ("p2p.setup:explode", 11, "expected an action"),
        ("cuda*:slow=1ms;p2p.proxi.setup:error=3", 16, "no site 'p2p.proxi.setup'; the nearest are p2p.proxy.setup,"),
        ("cudaMemcpyasync:error=1", 1, "no site 'cudaMemcpyasync'; the nearest are cudaMemcpyAsync,"),
        ("zzz*:hang", 1, "no site 'zzz*'; `psmkit lab faults` lists all"),
        ("p2p.setup:drop", 1, "p2p.setup cannot drop; it can error, hang, kill, late, slow"),
        ("p2p.setup:error=5,rank=2", 1, "rank=2, but the run has ranks 0 to 1"),
        ("p2p.setup:hang,peer=7", 1, "peer=7, but the run has ranks 0 to 1"),
    ],
)
def test_wrong_fault_starts_no_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, character: int, said: str
) -> None:
    assert run(tmp_path / "out", "--fault", text) == 2
    first, shown, pointer = capsys.readouterr().err.splitlines()
    assert first.startswith(f"psmkit: bad fault at character {character}: {said}")
    assert (shown, pointer) == (f"  {text}", "  " + " " * (character - 1) + "^")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "site"),
    [
        ("TIMEOUT", "p2p.setup"),
        ("PSM_ERR_TIMEOUT", "p2p.*"),
        ("ENOSPC", "shm.reserve"),
        ("ncclRemoteError", "net.isend"),
        ("cudaErrorIllegalAddress", "cudaMalloc"),
        ("5", "p2p.setup"),
    ],
)
def test_names_of_errors_that_a_site_knows_are_accepted(name: str, site: str) -> None:
    (fault,) = faults.check(f"{site}:error={name}", faults.sites(), 2)
    assert fault.action == "error"


def test_errors_of_libpsm_are_listed_as_it_names_them() -> None:
    assert tuple(status.c_name.removeprefix("PSM_ERR_") for status in Status if status < 0) == STATUSES


def test_names_of_errors_are_checked_without_loading_libpsm() -> None:
    # The ranks' libpsm may be one that this process cannot load, such as a build under a sanitizer.
    code = "from psmkit.lab import faults; faults.check('p2p.setup:error=ABORTED', faults.sites(), 2); print(open('/proc/self/maps').read())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "python" in done.stdout and "libpsm.so" not in done.stdout


def test_fault_that_never_fired_is_in_doubt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missed = "p2p.setup:error=5:rank=0:nth=99"
    assert run(tmp_path / "out", "--fault", "cudaMalloc:slow=1ms", "--fault", missed) == 3
    out = capsys.readouterr().out
    assert out.startswith("in doubt:") and "1 fault that you asked for never fired" in out
    assert f"never fired: {missed}: no call matched it" in " ".join(out.split())
    assert main(["lab", "report", str(tmp_path / "out")]) == 3
    assert capsys.readouterr().out == out
    assert main(["lab", "report", str(tmp_path / "out"), "--format", "json"]) == 3
    assert json.loads(capsys.readouterr().out)["settings"]["idle"] == [f"{missed}: no call matched it"]


def test_error_that_the_site_does_not_know_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "out", "--fault", "p2p.setup:error=EWOULDBLOCK,rank=0") == 3  # an alias
    assert "p2p.setup knows no error EWOULDBLOCK" in capsys.readouterr().out


def test_fault_that_fired_leaves_a_good_run_good(tmp_path: Path) -> None:
    assert run(tmp_path / "out", "--fault", "cuda*:slow=1ms:nth=3") == 0
    done = transfer.read(tmp_path / "out")
    assert done.struck() and done.idle == []


@pytest.mark.parametrize("command", [("run",), ("nccl", "--lib", "/")])
def test_faults_of_the_shell_are_refused_and_name_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PSM_FAULTS", "p2p.setup:error=5,rank=0")
    assert main(["lab", *command, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said == f"psmkit: PSM_FAULTS is set; psmkit lab {command[0]} takes --fault: unset PSM_FAULTS\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["", " ", ";"])
def test_empty_fault_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert run(tmp_path / "out", "--fault", text) == 2
    assert "'--fault': empty fault, expected SITE:ACTION" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_faults_of_an_environment_are_checked_too(tmp_path: Path) -> None:
    with pytest.raises(faults.FaultError, match=r"no site 'p2p\.setupp'"):
        transfer.start([transfer.Case()], 2, tmp_path / "out", environment={"PSM_FAULTS": "p2p.setupp:hang"})
    lab = Emulation(tmp_path, faults="p2p.setup:explode")
    with pytest.raises(faults.FaultError, match="character 11"):
        transfer.start([transfer.Case()], 2, tmp_path / "out", emulation=lab)


def test_rank_programs_of_tests_do_not_start_with_a_wrong_fault(tmp_path: Path) -> None:
    with pytest.raises(faults.FaultError, match="expected an action"):
        Ranks(tmp_path).run_program(["/bin/true"], environment={"PSM_FAULTS": "my.site:explode"})


@pytest.mark.parametrize(
    ("text", "rank", "call", "made"),
    [
        ("a.b:hang", 0, 7, True),
        ("a.*:hang", 1, 1, True),
        ("a.b:hang:rank=1", 0, 1, False),
        ("a.b:hang:rank=1", None, 1, True),
        ("a.b:hang:nth=3", 0, 3, True),
        ("a.b:hang:nth=3", 0, 4, False),
        ("a.b:hang:nth=3+", 0, 4, True),
        ("a.b:hang:nth=3/5", 0, 8, True),
        ("a.b:hang:nth=3/5", 0, 9, False),
        ("a.b:slow=1ms", 0, 1, False),
        ("a.bb:hang", 0, 1, False),
    ],
)
def test_line_is_matched_to_its_fault(text: str, rank: int | None, call: int, made: bool) -> None:
    (fault,) = faults.parse(text)
    line = {"action": "hang", "site": "a.b", "nth": call} | ({} if rank is None else {"rank": rank})
    assert fault.made(line) == made


def test_position_counts_characters_and_not_bytes() -> None:
    with pytest.raises(faults.FaultError) as caught:
        faults.parse("a:hang ;\u00a0\u00e9b:hang")
    assert caught.value.position == 8


@pytest.mark.parametrize("keep", [0, 5, 63, 64, 200, -400])
def test_damaged_binary_is_an_error(tmp_path: Path, keep: int) -> None:
    whole = transfer.program().read_bytes()
    (tmp_path / "cut").write_bytes(whole[:keep])
    with pytest.raises(LabError, match=r"ELF file|damaged"):
        elf.sites(tmp_path / "cut")
