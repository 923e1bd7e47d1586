"""What a peer says of a segment is not believed: forged headers, shares and names are refused, and nothing crashes."""

from __future__ import annotations

import fcntl
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.csrc.psm import ground

Start = Callable[..., ground.Ground]
HEADER = struct.Struct("<QIIQQIIQQ40s24s")
FIELDS = ("magic", "version", "header_size", "size", "id", "pid", "uid", "start", "ns", "boot", "label")
SHARE = struct.Struct("<HhIQQQ64s")
MAGIC, PAGE = 0x50534D5345474D31, 4096
SEALED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def header(**changed: object) -> bytes:
    good: dict[str, object] = dict(
        zip(FIELDS, (MAGIC, 1, PAGE, PAGE + 64, 77, 5, 0, 1, 2, b"boot", b"label"), strict=True)
    )
    return HEADER.pack(*(good | changed).values())


def share(
    kind: int = ground.MEMFD, pid: int = 5, id_: int = 77, size: int = 64, offset: int = PAGE, blob: bytes = b""
) -> bytes:
    return SHARE.pack(kind, -1, pid, id_, size, offset, blob)


def forge(process: ground.Ground, head: bytes, offer: bytes, file_size: int = PAGE + 64, seals: int = SEALED) -> int:
    slot, size = process.ask("forge", head.hex() or "-", file_size, seals, offer.hex() or "-")
    process.ask("close", slot)
    return int(size)


@pytest.fixture(scope="module")
def victim(ground_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ground.Ground]:
    folder = tmp_path_factory.mktemp("forged")
    with ground.Ground(ground_program, folder / "log", PSM_SHM_DIR=str(folder)) as process:
        yield process


def test_the_forger_makes_good_ones_too(victim: ground.Ground) -> None:
    assert forge(victim, header(), share()) == 64


@pytest.mark.parametrize(
    ("head", "offer", "status", "values"),
    [
        (header(magic=0x1234), share(), "PROTOCOL", ("0x1234", "0x50534d5345474d31")),
        (header(version=2), share(), "VERSION", ("version 2", "version 1")),
        (header(header_size=64), share(), "PROTOCOL", ("0x40", "0x1000")),
        (header(size=PAGE), share(), "PROTOCOL", ("0x1000", "0x1040")),
        (header(size=2**63), share(), "PROTOCOL", ("0x8000000000000000", "0x1040")),
        (header(size=PAGE + 65), share(), "MISMATCH", ("4161", "4160")),
        (header(id=0), share(), "PROTOCOL", ("0x0",)),
        (header(id=78), share(), "MISMATCH", ("0x4d", "0x4e")),
        (header(pid=6), share(), "MISMATCH", ("0x5", "0x6")),
        (header(label=b"x" * 24), share(), "PROTOCOL", ("not NUL-ended",)),
        (header(boot=b"x" * 40), share(), "PROTOCOL", ("not NUL-ended",)),
        (header(), share(size=65), "MISMATCH", ("0x41", "0x40")),
        (header(), share(size=2**64 - 1), "MISMATCH", ("0xffffffffffffffff", "0x40")),
        (header(), share(offset=0), "MISMATCH", ("0x0", "0x1000")),
        (header(), share(offset=2**64 - 64), "MISMATCH", ("0xffffffffffffffc0", "0x1000")),
        (header(), share(id_=0), "PROTOCOL", ("id is 0",)),
        (header(), share(kind=4), "INVALID", ("kind 4",)),
        (header(), share(kind=0), "INVALID", ("kind 0",)),
    ],
)
def test_a_difference_is_refused_with_both_values(
    victim: ground.Ground, head: bytes, offer: bytes, status: str, values: tuple[str, ...]
) -> None:
    with pytest.raises(ground.GroundError) as error:
        forge(victim, head, offer)
    assert error.value.status == f"PSM_ERR_{status}"
    assert all(value in error.value.text for value in values), error.value.text


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW])
def test_a_file_that_can_be_cut_short_is_refused(victim: ground.Ground, seals: int) -> None:
    with pytest.raises(ground.GroundError) as error:
        forge(victim, header(), share(), seals=seals)
    assert error.value.status == "PSM_ERR_DENIED" and f"bad seals 0x{seals:x}, expected 0x6" in error.value.text


@pytest.mark.parametrize("size", [0, 1, 119])
def test_a_file_without_a_whole_header_is_refused(victim: ground.Ground, size: int) -> None:
    with pytest.raises(ground.GroundError) as error:
        forge(victim, header(), share(), file_size=size)
    assert error.value.status == "PSM_ERR_PROTOCOL" and f"0x{size:x}" in error.value.text


@pytest.mark.parametrize("path", ["-", "/dev/null", "/proc/self/maps", "/dev/zero"])
def test_what_is_no_segment_is_refused(victim: ground.Ground, path: str) -> None:
    with pytest.raises(ground.GroundError) as error:
        victim.attach(share(), path)
    assert error.value.status in ("PSM_ERR_PROTOCOL", "PSM_ERR_SYSTEM", "PSM_ERR_DENIED")


@pytest.mark.parametrize(
    "name",
    [
        b"",
        b"psm-",
        b"psm-0123456789abcde",
        b"psm-0123456789abcdeg",
        b"psm-0123456789ABCDEF",
        b"psm-0123456789abcdef0",
        b"../psm-0123456789abcd",
        b"/etc/passwd",
        b"psm-0123456789abcde/",
        b"x" * 64,
    ],
)
def test_only_our_names_are_opened(victim: ground.Ground, name: bytes) -> None:
    with pytest.raises(ground.GroundError) as error:
        victim.attach(share(kind=ground.POSIX, blob=name))
    assert error.value.status == "PSM_ERR_PROTOCOL" and "name" in error.value.text


def test_a_link_or_a_pipe_of_our_name_is_not_followed(start: Start, tmp_path: Path) -> None:
    import os

    process = start()
    folder = tmp_path / "shm"
    (folder / "psm-0000000000000001").symlink_to("/etc/passwd")
    os.mkfifo(folder / "psm-0000000000000002", 0o600)
    for name in (b"psm-0000000000000001", b"psm-0000000000000002"):
        with pytest.raises(ground.GroundError):
            process.attach(share(kind=ground.POSIX, blob=name))
    assert len(list(folder.iterdir())) == 2, "what is refused is not removed either"


def test_a_file_open_to_others_is_refused(start: Start, tmp_path: Path) -> None:
    owner, peer = start(), start()
    segment = owner.create(ground.POSIX, 64)
    (tmp_path / "shm" / segment.name).chmod(0o666)
    with pytest.raises(ground.GroundError) as error:
        peer.attach(segment.share)
    assert error.value.status == "PSM_ERR_DENIED" and "0666" in error.value.text and "0600" in error.value.text


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """Bytes that were good once."""
    data = bytearray(good)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data) - 1))
        data[at] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


@settings(deadline=None, max_examples=400)
@given(
    head=damaged(header()),
    offer=damaged(share()),
    file_size=st.sampled_from([PAGE + 64, 0, 64, PAGE, PAGE + 1, 1 << 20]),
    seals=st.sampled_from([SEALED, SEALED, 0, 0xF]),
)
def test_no_damage_crashes_or_holds_anything(
    victim: ground.Ground, head: bytes, offer: bytes, file_size: int, seals: int
) -> None:
    before = victim.held()
    try:
        size = forge(victim, head, offer, file_size, seals)
    except ground.GroundError as error:
        assert error.text and error.stage == "shm"
    else:
        assert size == 64 and file_size == PAGE + 64
    assert victim.held() == before
