"""What is said of a library, over facts of our own about it."""

from __future__ import annotations

import json
from pathlib import Path

from psmkit.lab.nccl_library import Library
from psmkit.nccl.prepare import RECORD, headers_of
from psmkit.nccl.verify import _layouts, _linked, _used

LIBRARY = Library(Path("libnccl.so.2"), "2.30.7", "13.0", "shared 13", ())


def test_a_stripped_library_proves_nothing_about_what_is_linked_in() -> None:
    assert _linked(frozenset()).state == "unproven"


def test_a_transport_that_is_missing_or_the_forks_own_fails() -> None:
    assert _linked(frozenset({"ncclCommInitRank"})).state == "failed"
    assert "the fork's own" in _linked(frozenset({"psmP2pTransport"})).text
    ours = _linked(
        frozenset({"psmP2pTransport", "_ZN3psm11proxy_setupEP19ncclProxyConnection", "_Z9psmLaunchP8ncclComm"})
    )
    assert (ours.state, ours.text.endswith("with the hooks of a plain tree (psmLaunch)")) == ("ok", True)


def test_headers_that_changed_after_the_compilation_fail(tmp_path: Path) -> None:
    header = tmp_path / "nccl" / "src" / "comm.h"
    for path in (header, tmp_path / "build" / "include" / "nccl.h"):
        path.parent.mkdir(parents=True)
        path.write_text("struct ncclComm;\n")
    (tmp_path / RECORD).write_text(json.dumps({"release": "2.30.7", "headers": headers_of(tmp_path)}))
    assert _layouts(LIBRARY, tmp_path).state == "ok"
    header.write_text("struct ncclComm { int more; };\n")
    assert _layouts(LIBRARY, tmp_path).state == "failed"
    (tmp_path / RECORD).write_text(json.dumps({"release": "2.28.9", "headers": ""}))
    assert "compiled for NCCL 2.28.9, the library is 2.30.7" in _layouts(LIBRARY, tmp_path).text
    assert _layouts(LIBRARY, None).state == "unproven"


def test_the_logs_of_both_ranks_must_name_the_transport(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-0.log").write_text("Channel 00/1 : 0[0] -> 1[1] via PSM_P2P/CUMEM\n")
    (tmp_path / "logs" / "rank-1.log").write_text("Channel 00/1 : 1[1] -> 0[0] via P2P/CUMEM\n")
    assert _used(tmp_path).state == "failed"
    (tmp_path / "logs" / "rank-1.log").write_text("Channel 00/1 : 1[1] -> 0[0] via PSM_P2P/CUMEM\n")
    assert _used(tmp_path).text == "2 connections via PSM_P2P/CUMEM in the logs"
