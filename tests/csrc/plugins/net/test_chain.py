"""libnccl-net-psm.so in front of another net plugin: PSM_NET=chain:/path."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from psmkit.logparse.records import open_record
from tests.csrc.base import compiled
from tests.csrc.plugins.net.built import VERSIONS, Built
from tests.plugins import drive_libraries


@pytest.fixture(scope="session")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A right plugin in nine libraries: each has one version of the table."""
    folder = tmp_path_factory.mktemp("others")
    return {version: drive_libraries.plugin_of(folder, version) for version in VERSIONS}


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for libraries that cannot be chained."""
    return tmp_path_factory.mktemp("small")


def chained(path: Path) -> dict[str, str]:
    return {"PSM_NET": f"chain:{path}"}


@pytest.mark.parametrize("inner", VERSIONS)
def test_every_table_is_served_over_every_other(net: Built, others: dict[int, Path], inner: int) -> None:
    # The newest of ours, the oldest, and one between; the drive of all is for hands.
    for outer in {4, 12, 16 - inner}:
        _, log = net.run("data", outer, **chained(others[inner]))
        assert f"NET/PSM : backend chain, using Broken v{inner} of {others[inner]}, 1 devices: [0]lo" in log


@pytest.mark.parametrize("inner", [5, 8, 12])
@pytest.mark.parametrize("scenario", ["groups", "many", "profiler"])
def test_the_other_plugin_moves_what_ours_is_given(
    net: Built, others: dict[int, Path], inner: int, scenario: str
) -> None:
    out, _ = net.run(scenario, **chained(others[inner]))
    if scenario == "profiler":  # from v10 on it has the callback and the phandles, too
        events = re.findall(r"(\d+) events of another plugin", out)
        assert len(events) >= 1 and all((int(n) > 0) == (inner >= 10) for n in events)


def test_both_ends_name_a_connection_alike(net: Built, others: dict[int, Path]) -> None:
    _, log = net.run("data", **chained(others[12]))

    sends, receives = (re.findall(rf"chain connection ([0-9a-f]+) {role}, rank", log) for role in ("send", "recv"))
    assert sends and sorted(sends) == sorted(receives)


def test_faults_strike_above_the_other_plugin(net: Built, others: dict[int, Path]) -> None:
    ended = re.compile(r"receiver (\d+): result (\d+) done (\d) size (\d+) (.)(.)")
    out, log = net.run("faults", **chained(others[12]), PSM_FAULTS="net.isend:short=10:nth=2;net.isend:corrupt:nth=4")
    got = ended.findall(out)
    # An isend that the other plugin does not take yet comes again, and its fault with it: which message it is differs.
    assert "PSM_FAULTS: short" in out + log
    assert sorted(m[3] for m in got) == ["10"] + ["64"] * 9
    assert [m[5] == m[4] for m in got if m[3] == "64"].count(False) == 1
    out, _ = net.run("faults", **chained(others[8]), PSM_FAULTS="net.isend:drop:nth=3")
    got = "".join(m[4] for m in ended.findall(out))
    assert len(got) == 10 and got[-1] == "-" and len(set("abcdefghij") - set(got)) == 1
    out, log = net.run("faults", **chained(others[9]), PSM_FAULTS="net.connection:drop:rank=0:nth=4")
    assert "send, rank 0 device 0: peer rank -1 at unknown was lost by a fault" in log
    assert out.count("done 0") == 2


def test_the_record_tells_the_requests_of_a_killed_process(net: Built, others: dict[int, Path], tmp_path: Path) -> None:
    faults = {"PSM_RECORD_DIR": str(tmp_path), "PSM_FAULTS": "net.test:kill:nth=5:rank=0"}
    process = net.start("faults", **faults, **chained(others[12]))
    process.communicate(timeout=100)
    assert process.returncode != 0, "the receiver misses its peer"
    found = [{s.name: s for s in open_record(str(path)).sections} for path in tmp_path.glob("*.rec")]
    (sections,) = (one for one in found if one["psm.net.comm"].values(0)["role"] == "send")
    comm, request = sections["psm.net.comm"].values(0), sections["psm.net"].values(0)
    assert comm["backend"] == "chain"
    assert (request["connection"], request["op"], request["size"]) == (comm["connection"], "send", 64)


def library(folder: Path, name: str, code: str) -> Path:
    (folder / f"{name}.c").write_text(code)
    output = folder / f"{name}.so"
    command = [
        compiled.compiler(),
        "-shared",
        "-fPIC",
        f"-I{compiled.ROOT / 'psmkit/psm/include'}",
        folder / f"{name}.c",
    ]
    subprocess.run([*command, "-o", output], check=True, timeout=60)
    return output


def refused(net: Built, path: str, **env: str) -> str:
    """The log of an init that fails."""
    process = net.start("devices", PSM_NET=f"chain:{path}", **env)
    _, log = process.communicate(timeout=60)
    assert process.returncode != 0
    return log


def test_what_cannot_be_chained_is_one_clear_line(net: Built, others: dict[int, Path], small: Path) -> None:
    empty = library(small, "empty", "int nothing;\n")
    slots = library(small, "slots", '#include "psm_abi/net.h"\nconst ncclNet_v8_t ncclNetPlugin_v8 = {.name = "x"};\n')
    for path, why in (
        (str(small / "none.so"), r"cannot open shared object file"),
        ("", r"no path: expected PSM_NET=chain:/path/to/libnccl-net-other\.so"),
        (str(empty), r"it has no table of a net plugin, ncclNetPlugin_v4 to v12"),
        (str(slots), r"init is NULL in its ncclNetPlugin_v8"),
        (str(net.library), r"it is this library, which would call itself for ever"),
    ):
        log = refused(net, path)
        said = re.findall(rf"NCCL WARN NET/PSM : PSM_NET=chain:{re.escape(path)} cannot be used: .*{why}", log)
        assert len(said) == 2 or len(said) == 1, log  # each process says it once, if it comes that far
    log = refused(net, str(others[8]), BROKEN="init-fails")
    assert "NET/PSM : init of the chained plugin Broken v8 returned 2" in log
    assert "NET/Broken : there is no network" in log, "the other plugin has NCCL's logger"


def test_an_error_of_the_other_plugin_is_named_and_handed_on(net: Built, others: dict[int, Path]) -> None:
    process = net.start("data", **chained(others[9]), BROKEN="connect-fails")
    _, log = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "NET/PSM : connect of the chained plugin Broken v9 returned 6" in log


def test_a_table_that_the_other_plugin_fills_in_init_is_read_after_it(net: Built, small: Path) -> None:
    filled = drive_libraries.filled_by_init(small)
    _, log = net.run("data", **chained(filled))
    assert f"NET/PSM : backend chain, using Broken v12 of {filled}, 1 devices: [0]lo" in log
    log = refused(net, str(filled), FILLED="partly")
    assert f"PSM_NET=chain:{filled} cannot be used: isend is NULL in its ncclNetPlugin_v12 after init" in log
