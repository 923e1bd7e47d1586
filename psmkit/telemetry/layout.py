"""The structs of csrc/telemetry (window.h, telemetry.cdef.h) as numpy types, and the names of their constants."""

from __future__ import annotations

from typing import Any

from psmkit.model.arrays.whole import np, npt
from psmkit.telemetry.kinds import OWN_ROWS, WORD

__all__ = [
    "ALGORITHMS",
    "API",
    "BUCKETS",
    "CE",
    "COLL",
    "COMM",
    "COMPLETIONS",
    "DATATYPES",
    "EVENT",
    "FUNCTIONS",
    "KERNEL",
    "KERNEL_PHASE",
    "LINK",
    "LOSSES",
    "NAMES",
    "NET",
    "OP",
    "OWN",
    "P2P",
    "PHASES",
    "PROTOCOLS",
    "PROXY_CTRL",
    "PROXY_OP",
    "PROXY_STEP",
    "ROW",
    "STAT",
    "TAGGED",
    "TIME",
    "member",
    "phase_name",
    "user_tag",
]

BUCKETS = 48


def _struct(
    *fields: tuple[str, str] | tuple[str, str | np.dtype[np.void], tuple[int, ...]] | tuple[str, np.dtype[np.void]],
) -> np.dtype[np.void]:
    return np.dtype(list(fields), align=True)


# ---- what the consumer returns: telemetry.cdef.h ----

COMM = _struct(
    *((name, "u8") for name in (
        "comm_hash", "begin_ns", "end_ns", "windows", "forced", "events", "begun", "dropped_full", "dropped_memory",
        "overwritten", "carried", "incomplete", "bad_handle", "stale_handle", "stopped_twice", "state_after_stop",
        "never_stopped", "foreign_parents", "torn", "last_ns",
    )),
    *((name, "i4") for name in ("rank", "nranks", "nnodes", "pid")),
    *((name, "u4") for name in ("abi", "mask", "context", "owner", "busy", "id")),
    ("name", "S64"), ("host", "S64"), ("file", "S256"),
)  # fmt: skip

STAT = _struct(
    ("count", "u8"), ("sum", "f8"), ("squares", "f8"), ("least", "u8"), ("most", "u8"), ("bucket", "u4", (BUCKETS,))
)  # fmt: skip

OP = _struct(
    ("comm", "u4"), ("type", "u4"),
    *((name, "u1") for name in ("func", "algo", "proto", "datatype")),
    ("peer", "i4"),
    *((name, "u4") for name in ("by_proxy", "by_kernel", "by_ce", "by_enqueue", "incomplete", "channels", "other", "pad")),
    *((name, STAT) for name in ("bytes", "duration", "transfers", "transfer_bytes", "transfer_time")),
)  # fmt: skip

LINK = _struct(
    ("comm", "u4"), ("rank", "i4"), ("peer", "i4"), ("channel", "i4"), ("sends", "u4"), ("other", "u4"),
    ("count", "u8"), ("bytes", "u8"), ("time", "u8"),
    *((name, "f8") for name in ("sx", "sy", "sxx", "sxy", "syy", "mx", "my", "mxx", "mxy", "myy")),
    ("mcount", "u8"), ("wait", "u8", (4,)), ("latency", STAT),
)  # fmt: skip

TIME = _struct(("comm", "u4"), ("what", "u4"), ("sub", "i8"), ("bytes", "u8"), ("duration", STAT))

LOSSES = _struct(
    *((name, "u8") for name in ("spans", "span_rows", "rows", "other", "held", "files", "orphans", "sizes"))
)

# ---- a row of a window: window.h ----

EVENT = _struct(
    ("parent", "u8"), ("stop_ns", "u8"), ("type", "u1"), ("abi", "u1"), ("flags", "u1"), ("state", "u1"),
    ("reserved", "u4"), ("u", "u1", (80,)),
)  # fmt: skip

ROW = _struct(
    ("handle", "u8"), ("start_ns", "u8"), ("comm", "u4"), ("root", "u4"), ("tid", "i4"), ("why", "u4"), ("begin_ns", "u8"),
    ("end_ns", "u8"), ("by", "u4"), ("reserved", "u4"), ("event", EVENT),
)  # fmt: skip


def _member(*fields: tuple[str, str] | tuple[str, str, tuple[int, ...]]) -> np.dtype[np.void]:
    """A member of the union, padded to the size of the union."""
    plain = np.dtype(list(fields), align=True)
    names = plain.names or ()
    assert plain.fields is not None
    return np.dtype(
        {
            "names": list(names),
            "formats": [plain.fields[n][0] for n in names],
            "offsets": [plain.fields[n][1] for n in names],
            "itemsize": 80,
        }
    )


COLL = _member(
    ("seq", "u8"), ("count", "u8"), ("group", "u8"), ("done_ns", "u8"), ("root", "i4"),
    *((name, "u1") for name in ("func", "datatype", "algo", "proto", "channels", "warps")),
    *((name, "u2") for name in ("ops_begun", "ops_ended", "kernels_begun", "kernels_ended")),
    ("send_buff", "u8"), ("recv_buff", "u8"),
)  # fmt: skip
P2P = _member(
    ("count", "u8"), ("group", "u8"), ("done_ns", "u8"), ("pad", "u8"), ("peer", "i4"), ("func", "u1"), ("datatype", "u1"),
    ("pad2", "u1", (2,)), ("channels", "u1"), ("pad3", "u1"),
    *((name, "u2") for name in ("ops_begun", "ops_ended", "kernels_begun", "kernels_ended")),
    ("buff", "u8"),
)  # fmt: skip
PROXY_OP = _member(
    ("pid", "i4"), ("peer", "i4"), ("steps", "i4"), ("chunk", "i4"), ("channel", "u1"), ("pad", "u1", (3,)),
    ("steps_ended", "u4"), ("bytes", "u8"), ("progress_ns", "u8"), ("wait_ns", "u8", (4,)),
)  # fmt: skip
PROXY_STEP = _member(
    ("step", "i4"), ("peer", "i4"), ("bytes", "u8"), ("gpu_ns", "u8"), ("peer_ns", "u8"), ("net_ns", "u8"), ("flush_ns", "u8"),
    ("channel", "u1"),
)  # fmt: skip
PROXY_CTRL = _member(("appended", "i4"), ("pad", "u4"), ("idle_ns", "u8"), ("sleep_ns", "u8"), ("append_ns", "u8"))
KERNEL = _member(("gpu_begin_ns", "u8"), ("gpu_end_ns", "u8"), ("channel", "u1"))
KERNEL_PHASE = _member(("gpu_begin_ns", "u8"), ("gpu_end_ns", "u8"), ("channel", "u1"), ("phase", "u1"), ("name", "u1"))
# Each kind that has an application's tag keeps it in the last word.
TAGGED = _member(("others", "u1", (72,)), ("user_tag", "u8"))
_TAGGED_TYPES = (1, 2, 9, 10, 12)  # coll, p2p, coll_api, p2p_api, ce_coll
NET = _member(("id", "i8"), ("size", "u4"), ("updates", "u4"), ("data", "u1", (48,)))
API = _member(
    ("count", "u8"), ("stream", "u8"), ("mark1_ns", "u8"), ("mark2_ns", "u8"), ("root", "i4"), ("depth", "i4"), ("func", "u1"),
    ("datatype", "u1"),
)  # fmt: skip
CE = _member(
    ("seq", "u8"), ("count", "u8"), ("stream", "u8"), ("bytes", "u8"), ("begin_ns", "u8"), ("end_ns", "u8"), ("root", "i4"),
    ("ops", "i4"), ("func", "u1"), ("datatype", "u1"), ("complete", "u1"), ("intra", "u1"), ("batches", "u4"),
)  # fmt: skip


def member(rows: npt.NDArray[np.void], kind: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """The union of rows (of ROW), viewed as one of its members."""
    return np.ascontiguousarray(rows["event"]["u"]).view(kind).reshape(len(rows))


def user_tag(event: Any) -> tuple[int, bool]:
    """The application's tag of an event (of EVENT), 0: none; and whether NCCL's own bit of it is set."""
    if int(event["type"]) not in _TAGGED_TYPES:
        return 0, False
    tag = int(event["u"].view(TAGGED)[0]["user_tag"])
    return tag & (2**63 - 1), bool(tag >> 63)


def phase_name(u: Any) -> str:
    """What to call a phase of a kernel (of KERNEL_PHASE): the name that NCCL gave, else its number."""
    name = int(u["name"])
    return PHASES[name] if name < len(PHASES) else f"phase {int(u['phase'])}"


# ---- words ----

FUNCTIONS = (
    "Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "Send", "Recv", "AlltoAll", "Scatter",
    "Gather",
)  # fmt: skip
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PHASES = ("initial_sync", "compute", "final_sync")
PROTOCOLS = ("ll", "ll128", "simple")
DATATYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16", "float8e4m3",
    "float8e5m2",
)  # fmt: skip
COMPLETIONS = ("incomplete", "proxy", "kernel", "copy_engine", "enqueue")  # enum psm_tel_by
# The names of a string, by its type in OWN_ROWS.
NAMES: dict[str, tuple[str, ...]] = {
    WORD: (), "FUNC": FUNCTIONS, "DATATYPE": DATATYPES, "ALGO": ALGORITHMS, "PROTO": PROTOCOLS
}  # fmt: skip

# ---- rows that only the facts describe ----

_TYPES = {"int": "i4", "i64": "i8", "byte": "u1", "flag": "u1", **dict.fromkeys(NAMES, "u1")}  # all others: u8
# By the number of the kind: psm_abi_rows.h declares the same members in the same order.
OWN = {
    at: _member(*((name, _TYPES.get(kind, "u8")) for name, kind in row)) for at, row in OWN_ROWS.items()
}  # fmt: skip
