"""ncclras -f json (2.28.7 and later): the status answer and the objects of monitoring mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psmkit.logparse.foreign.jsondocs import documents
from psmkit.logparse.foreign.types import RasComm, RasEvent, RasProcess, RasRank, RasReport

__all__ = ["parse_ras_json"]

_LARGEST = 1 << 64


def parse_ras_json(text: str) -> list[RasReport]:
    """The answers in ``text``; events of monitoring mode become one report without communicators."""
    values, whole = documents(text)
    out: list[RasReport] = []
    events: list[RasEvent] = []
    for value in values:
        if not isinstance(value, dict):
            continue
        if "communicators" in value or "nccl_version" in value:
            out.append(_report(value, whole))
        elif "event" in value:
            events.append(_event(value))
    if events:
        out.append(RasReport(events=tuple(events), complete=whole))
    return out


def _report(value: Mapping[str, Any], whole: bool) -> RasReport:
    comms = value.get("communicators")
    ras = value.get("ras")
    return RasReport(
        version=str(value["nccl_version"]) if "nccl_version" in value else None,
        time=str(value["timestamp"]) if "timestamp" in value else None,
        comms=tuple(_comm(c) for c in comms if isinstance(c, dict)) if isinstance(comms, list) else (),
        timeouts=_number(ras.get("timeouts_count")) or 0 if isinstance(ras, dict) else 0,
        complete=whole,
    )


def _comm(value: Mapping[str, Any]) -> RasComm:
    ranks: list[RasRank] = []
    for key, missing in (("ranks", False), ("missing_ranks", True)):
        items = value.get(key)
        if isinstance(items, list):
            ranks.extend(_rank(r, missing) for r in items if isinstance(r, dict))
    return RasComm(
        hash=_number(value.get("hash")),
        size=_number(value.get("size")) or 0,
        ranks=tuple(sorted((r for r in ranks if r.rank >= 0), key=lambda r: r.rank)),
    )


def _rank(value: Mapping[str, Any], missing: bool) -> RasRank:
    status = value.get("status")
    state: Mapping[str, Any] = status if isinstance(status, dict) else {}
    raw = value.get("collective_counts")
    counts = {str(k): n for k, v in raw.items() if (n := _number(v)) is not None} if isinstance(raw, dict) else {}
    rank = _number(value.get("rank"))
    device = _number(value.get("cuda_dev"))
    return RasRank(
        rank=rank if rank is not None else -1,
        host=str(value["host"]) if "host" in value else None,
        pid=_number(value.get("pid")),
        gpu=str(device) if device is not None else None,
        counts=counts,
        init_state=_number(state.get("init_state")),
        async_error=_number(state.get("async_error")),
        aborted=bool(state.get("abort_flag")),
        ending=bool(state.get("finalize_called")) or bool(state.get("destroy_flag")),
        missing=missing,
        unresponsive=bool(state.get("unresponsive")),
        dead=bool(state.get("considered_dead")),
    )


def _event(value: Mapping[str, Any]) -> RasEvent:
    peer = value.get("peer")
    process = None
    if isinstance(peer, dict) and "pid" in peer:
        devices = peer.get("cuda_devs")
        process = RasProcess(
            host=str(peer.get("host", "")),
            pid=_number(peer.get("pid")) or 0,
            gpus=",".join(str(d) for d in devices) if isinstance(devices, list) else None,
        )
    return RasEvent(
        event=str(value["event"]),
        time=str(value["timestamp"]) if "timestamp" in value else None,
        process=process,
        detail=str(value.get("details", "")),
    )


def _number(value: Any) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < _LARGEST else None
