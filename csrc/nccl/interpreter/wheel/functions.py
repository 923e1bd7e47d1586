"""Read the ids of device functions from the binary of NCCL 2.21.5: its host code has the table, without names.

usage: functions.py libnccl.so.2 functions.inc
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

_RELEASE = b"NCCL version 2.21.5+cuda"
_TABLE = b"ncclDevFuncRowToId"
_OPS = ("Sum", "Prod", "MinMax", "PreMulSum", "SumPostDiv")
_TYPES = ("i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
_RING = ("RING",)
_GATHER = ("RING", "COLLNET_DIRECT", "NVLS")
_ALL = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE")
_SYMTAB = 2


def rows() -> Iterator[str]:
    """The functions in the order of the table's rows."""
    yield "SendRecv"
    for collective, algorithms in (("AllGather", _GATHER), ("Broadcast", _RING)):
        for words in product(algorithms, _PROTOCOLS):
            yield " ".join((collective, *words))
    for collective, algorithms in (("AllReduce", _ALL), ("Reduce", _RING), ("ReduceScatter", _GATHER)):
        for words in product(_OPS, _TYPES, algorithms, _PROTOCOLS):
            yield " ".join((collective, *words))


def table(data: bytes) -> list[int]:
    """The ids by row; -1: there is no such function."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise SystemExit("this is no 64-bit ELF file")
    at, size, count = (
        struct.unpack_from("<Q", data, 0x28)[0],
        *struct.unpack_from("<HH", data, 0x3A),
    )
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, at + i * size) for i in range(count)]
    for kind, start, length, link in ((s[1], s[4], s[5], s[6]) for s in sections):
        if kind != _SYMTAB:
            continue
        names = sections[link][4]
        for place in range(start, start + length, 24):
            name, _info, _other, section, value, bytes_ = struct.unpack_from("<IBBHQQ", data, place)
            if data.startswith(_TABLE + b"\0", names + name):
                offset = sections[section][4] + value - sections[section][3]
                return list(struct.unpack_from(f"<{bytes_ // 4}i", data, offset))
    raise SystemExit(f"there is no {_TABLE.decode()} in it: is it stripped?")


def main() -> None:
    source, target = (Path(word) for word in sys.argv[1:3])
    data = source.read_bytes()
    ids, names = table(data), list(rows())
    if _RELEASE not in data:  # others may have as many functions, and other layouts
        raise SystemExit(f"{source} is not NCCL 2.21.5: its version is not in it")
    if len(ids) != len(names) + 1 or ids[-1] != -1:
        raise SystemExit(f"{source} has {len(ids) - 1} rows of functions, and NCCL 2.21.5 has {len(names)}")
    found: dict[int, str] = {}
    for key, name in zip(ids, names, strict=False):
        # Sums of signed integers are those of unsigned ones, which come next.
        if key >= 0:
            found[key] = name
    target.write_text("".join(f'{{{key}, "{name}"}},\n' for key, name in sorted(found.items())))


main()
