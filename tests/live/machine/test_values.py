"""Values of variables that NCCL or psmkit does not take as they are written."""

from __future__ import annotations

import re
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from psmkit.live.machine import checks
from psmkit.live.machine.environment import variables
from psmkit.live.machine.values import number
from psmkit.plugins import installed
from tests.live.machine.roots import bad, machine, of

ROOT = Path(__file__).parents[3]
FACTS = tomllib.loads((resources.files("psmkit.live.machine") / "values.toml").read_text())


@pytest.mark.parametrize(
    ("name", "value", "why", "do"),
    [
        ("NCCL_IB_DISABLE", "yes", "takes 0, for a text without digits", "export NCCL_IB_DISABLE=1"),
        ("NCCL_P2P_DISABLE", "true", "takes 0", "export NCCL_P2P_DISABLE=1"),
        ("NCCL_BUFFSIZE", "4MB", "takes 4, for the digits at its beginning", "export NCCL_BUFFSIZE=4194304"),
        ("NCCL_BUFFSIZE", "2e6", "takes 2", "unset NCCL_BUFFSIZE"),
        ("NCCL_IB_TIMEOUT", "08", "takes 0", "unset NCCL_IB_TIMEOUT"),
        ("NCCL_BUFFSIZE", "9" * 20, "ignores this one", "unset NCCL_BUFFSIZE"),
        ("NCCL_MAX_NCHANNELS", "-5", "takes 1 instead; the least is 1", "unset NCCL_MAX_NCHANNELS"),
        ("NCCL_MAX_CTAS", "0", "ignores the value", "unset NCCL_MAX_CTAS"),
        ("NCCL_P2P_LEVEL", "BOGUS", "ignores the value", "unset NCCL_P2P_LEVEL"),
        ("NCCL_NET_GDR_LEVEL", "phb", "NCCL knows LOC, NVL", "export NCCL_NET_GDR_LEVEL=PHB"),
        ("NCCL_ALGO", "Rng", "2.24 and later fail with it", "unset NCCL_ALGO"),
        ("NCCL_ALGO", "Ring,Tre", "Tre: NCCL knows", "unset NCCL_ALGO"),
        ("NCCL_ALGO", "allreduc:ring", "allreduc: NCCL knows", "unset NCCL_ALGO"),
        ("NCCL_PROTO", "LL129", "NCCL knows LL, LL128, Simple", "unset NCCL_PROTO"),
        ("NCCL_DEBUG_SUBSYS", "INIT,FOO", "FOO: NCCL knows INIT", "export NCCL_DEBUG_SUBSYS=INIT"),
        ("NCCL_DEBUG_SUBSYS", "^FOO", "FOO: NCCL knows INIT", "unset NCCL_DEBUG_SUBSYS"),
        ("NCCL_SOCKET_FAMILY", "ipv4", "NCCL knows AF_INET, AF_INET6", "unset NCCL_SOCKET_FAMILY"),
        ("NCCL_SET_THREAD_NAME", "yes", "NCCL knows 0, 1; NCCL leaves it off", "unset NCCL_SET_THREAD_NAME"),
        ("NCCL_COMM_ID", "nohost", "takes the host nohost and port 65535", "export NCCL_COMM_ID=HOST:PORT"),
        ("NCCL_COMM_ID", "a:b", "no valid port", "export NCCL_COMM_ID=HOST:PORT"),
        ("NCCL_COMM_ID", "a:70000", "no valid port", "export NCCL_COMM_ID=HOST:PORT"),
        ("NCCL_COMM_ID", "fe80::1:5000", "takes the host fe80", "export NCCL_COMM_ID=HOST:PORT"),
        ("NCCL_COMM_ID", "[fe80::1]", "finds no such address", "export NCCL_COMM_ID=HOST:PORT"),
        ("PSM_TIMEOUT", "abc", "expects seconds from 0.001 to 86400", "unset PSM_TIMEOUT"),
        ("PSM_TIMEOUT", "0", "expects seconds", "unset PSM_TIMEOUT"),
        ("PSM_STEPS", "65", "expects a number from 1 to 64", "unset PSM_STEPS"),
        ("PSM_BUFFER_SIZE", "4MB", "expects bytes", "unset PSM_BUFFER_SIZE"),
        ("PSM_SHARE", "cuda", "expects one of auto, same-process", "unset PSM_SHARE"),
    ],
)
def test_value_that_is_not_taken_as_written_is_told(tmp_path: Path, name: str, value: str, why: str, do: str) -> None:
    found = [c for c in checks(machine(tmp_path, environ={"NCCL_DEBUG": "INFO", name: value})) if c.name == name]
    assert [(c.level, c.seen, c.do) for c in found] == [("warning", f"{value} (environment)", do)]
    assert why in found[0].why


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_IB_DISABLE", "0"),
        ("NCCL_IB_DISABLE", "false"),
        ("NCCL_IB_DISABLE", ""),
        ("NCCL_BUFFSIZE", "0x400000"),
        ("NCCL_MAX_NCHANNELS", "-2"),
        ("NCCL_IB_GID_INDEX", "-1"),
        ("NCCL_P2P_LEVEL", "NVL"),
        ("NCCL_P2P_LEVEL", "5"),
        ("NCCL_ALGO", "^ring,TREE"),
        ("NCCL_ALGO", "Ring;AllReduce:Tree;broadcast:^NVLS"),
        ("NCCL_PROTO", "simple"),
        ("NCCL_DEBUG", "info"),
        ("NCCL_DEBUG_SUBSYS", "^init,net,"),
        ("NCCL_DEBUG_TIMESTAMP_LEVELS", "ALL"),
        ("NCCL_COMM_ID", "10.0.0.1:5000"),
        ("NCCL_COMM_ID", "[fe80::1%eth0]:5000"),
        ("NCCL_SET_THREAD_NAME", "1"),
        ("NCCL_TOPO_DUMP_FILE", "yes"),
        ("PSM_TIMEOUT", "0.5"),
        ("PSM_BUFFER_SIZE", "4m"),
        ("PSM_SHARE", "CUMEM"),
        ("PSM_SHARE", "2"),
        ("PSM_NET_SOCKET_BUFFER", "0"),
    ],
)
def test_value_that_is_taken_as_written_is_not_complained_about(tmp_path: Path, name: str, value: str) -> None:
    assert bad(checks(machine(tmp_path, environ={"NCCL_DEBUG": "INFO", name: value}))) == {}


def test_switch_that_nccl_does_not_read_as_set_is_no_contradiction(tmp_path: Path) -> None:
    found = checks(machine(tmp_path, environ={"NCCL_IB_DISABLE": "yes", "NCCL_NET": "IB"}))
    assert "takes 0" in of(found, "NCCL_IB_DISABLE").why


def test_quoted_value_is_told_once(tmp_path: Path) -> None:
    assert "quotes" in of(checks(machine(tmp_path, environ={"NCCL_BUFFSIZE": "'4MB'"})), "NCCL_BUFFSIZE").why


@pytest.mark.parametrize(
    ("text", "value"),
    [("12", 12), (" -0x10", -16), ("010", 8), ("4MB", 4), ("yes", 0), ("", None), (str(1 << 63), None), ("0x", 0)],
)
def test_numbers_are_read_as_strtoll_reads_them(text: str, value: int | None) -> None:
    assert number(text) == value


def test_missing_plugin_is_told_without_a_library_of_nccl(tmp_path: Path) -> None:
    found = list(
        installed.checks(machine(tmp_path, environ={"NCCL_NET_PLUGIN": "nosuch", "NCCL_TUNER_PLUGIN": "none"}))
    )
    assert bad(found) == {"net plugin": "warning"}
    assert of(found, "net plugin").seen == "NCCL_NET_PLUGIN=nosuch: not found"
    library = {"/usr/lib/libnccl-net-nosuch.so": b"\x7fELF"}
    found = list(installed.checks(machine(tmp_path, library, {"NCCL_NET_PLUGIN": "nosuch"})))
    assert bad(found) == {}


@pytest.mark.parametrize("value", ["mine", "/opt/plugins/libnccl-net-mine.so", None])
def test_plugin_that_is_found_is_named_without_a_library_of_nccl(tmp_path: Path, value: str | None) -> None:
    path = f"/opt/plugins/libnccl-net{'-mine' if value else ''}.so"
    environ = {"LD_LIBRARY_PATH": "/opt/plugins"} | ({"NCCL_NET_PLUGIN": value} if value else {})
    found = list(installed.checks(machine(tmp_path, {path: b"\x7fELF"}, environ)))
    assert bad(found) == {}
    assert of(found, "net plugin").seen.endswith(f": NCCL opens {path}")


def test_every_name_is_a_variable() -> None:
    facts = variables()
    names = {name for entry in FACTS["words"] for name in entry["names"]} | set(FACTS["least"]) | set(FACTS["numbers"])
    assert names <= set(facts["nccl"]) and set(FACTS["psm"]) <= set(facts["psm"])
    assert all("number" in facts["nccl"][name] for name in FACTS["least"])


def test_ranges_are_those_of_the_sources() -> None:
    """The tables of libpsm and of the net plugin; a size such as 1 << 30 is an expression that Python reads, too."""
    text = "".join((ROOT / "csrc" / name).read_text() for name in ("psm/core/settings.c", "plugins/net/settings.c"))
    text = re.sub(r"UINT64_C\((\d+)\)", r"\1", text).replace("NET_RECVS", "8")
    rows = {
        m[1]: (m[2].lower(), eval(m[3]), eval(m[4]))
        for m in re.finditer(r'\{"(PSM_\w+)", FIELD\(\w+\), (\w+), ([\d <]+), ([\d <]+),', text)
    }
    for m in re.finditer(
        r'\{"(PSM_\w+)", "expected (\w+)[^"]*",\s*&net_settings\.\w+,\s*([\d <]+),\s*([\d <]+),\s*[\d <]+,\s*(\w+)\}',
        text,
    ):
        rows[m[1]] = (m[2] if m[5] == "THOUSANDTHS" else m[5].lower(), eval(m[3]), eval(m[4]))
    scale = {"seconds": 1000, "microseconds": 1000}
    ours = {}
    for name, (unit, low, high, *choices) in FACTS["psm"].items():
        ours[name] = ("choice" if choices else unit, low * scale.get(unit, 1), high * scale.get(unit, 1))
        assert all(f'"{choice}"' in text for choice in choices)
    assert ours == rows
