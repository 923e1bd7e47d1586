"""Scrubbed evidence: no name is left, equal names stay equal, lines and bytes stay where they are, nothing is copied unseen."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psmkit.catalogue import load
from psmkit.model.errors import InputError
from psmkit.names.pseudonyms import Pseudonyms
from psmkit.scrub import check, find, scrub
from psmkit.scrub.keys import Keys
from psmkit.scrub.lines import Lines, vocabulary

# Tokens are put together here, so that no scanner for secrets takes them for real ones.
HF = "hf_" + "Ab3" * 8
AWS = "AKIA" + "ABCDEFGH12345678"
GITHUB = "ghp_" + "a1B2" * 9
WANDB = "0123456789abcdef" * 2 + "01234567"
SECRETS = {
    "host": "gpu-node17",
    "domain": "corp.acme.com",
    "address": "10.12.13.14",
    "IPv6": "fd00:1:2::17",
    "user": "alice",
    "pid": "20403",
    "tid": "20453",
    "project": "wombat",
    "mac": "04:3f:72:aa:bb:cc",
    "guid": "0x506b4b0300c9f2d1",
    "hugging face": HF,
    "aws": AWS,
    "github": GITHUB,
    "wandb": WANDB,
    "password": "hunter22",
    "instance": "i-0abc12345def67890",
    "account": "123456789012",
    "uuid": "6d4d7a2e-1f0c-4c5f-9d6b-0f1e2d3c4b5a",
    "mail": "bob.smith",
}
LINES = (
    "gpu-node17:20403:20453 [3] NCCL INFO NCCL_DEBUG_FILE set by environment to /home/alice/wombat/nccl.%h.%p.log",
    "gpu-node17:20403:20453 [3] NCCL INFO Bootstrap : Using eth0:10.12.13.14<0>",
    "gpu-node17:20403:20453 [3] NCCL INFO comm 0x55f0ee791ec0 rank 3 nranks 8 cudaDev 3 busId 1b000 commId 0x5a16c3838ce6f1f8 - Init START",
    "gpu-node17:20403:20453 [3] transport/net.cc:123 NCCL WARN Net : Connection closed by remote peer gpu-node17.corp.acme.com<41722>",
    '  File "/home/alice/wombat/train_wombat.py", line 3, in main',
    f"HF_TOKEN={HF} AWS_ACCESS_KEY_ID={AWS} WANDB_API_KEY={WANDB} DB_PASSWORD='hunter22'",
    f"cloning https://bob.smith:{GITHUB}@git.acme.com/wombat/x with header Authorization: Bearer hunter22",
    "mail bob.smith@acme.com, from [fd00:1:2::17]:5000, mac 04:3f:72:aa:bb:cc, node guid: 0x506b4b0300c9f2d1",
    "i-0abc12345def67890 arn:aws:iam::123456789012:role/x GPU-6d4d7a2e-1f0c-4c5f-9d6b-0f1e2d3c4b5a",
    '{"hostname": "gpu-node17", "pid": 20403, "user": "alice", "cwd": "/data/wombat"}',
    "gpu-node17: wombat is run by alice as process 20403",
)


def lines_of(texts: list[bytes]) -> tuple[list[bytes], Pseudonyms]:
    names = Pseudonyms(vocabulary(load()))
    lines = Lines(names, load())
    for text in texts:
        lines.block(text)
    lines.settle()
    return [lines.block(text) for text in texts], names


def scrubbed(folder: Path, text: bytes) -> bytes:
    folder.mkdir(exist_ok=True)
    (folder / "in.log").write_bytes(text)
    scrub(str(folder / "in.log"), str(folder / "out.log"), force=True)
    return (folder / "out.log").read_bytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scrub")


@pytest.mark.parametrize("kind", SECRETS)
def test_no_secret_is_left(folder: Path, kind: str) -> None:
    text = scrubbed(folder, "\n".join(LINES).encode()).decode()
    assert SECRETS[kind] not in text


def test_what_the_analysis_matches_by_stays(folder: Path) -> None:
    text = scrubbed(folder, "\n".join(LINES).encode()).decode()
    for word in (
        "0x55f0ee791ec0",
        "0x5a16c3838ce6f1f8",
        "transport/net.cc:123",
        "rank 3 nranks 8",
        "busId 1b000",
        "eth0",
        "[3]",
    ):
        assert word in text
    assert re.search(
        r"^host\d:10000:10001 \[3\] NCCL INFO Bootstrap : Using eth0:198\.18\.0\.1<0>$", text, re.MULTILINE
    )


def test_bytes_that_are_no_text_line_ends_and_torn_lines_stay(folder: Path) -> None:
    text = b"gpu17:4711:4712 [0] NCCL INFO \xff\xfe\x80 x\r\n\r\n\xc3\r\nno end gpu17:4711:47"
    new = scrubbed(folder, text)
    assert new.count(b"\n") == text.count(b"\n")
    assert new.split(b"\r\n")[:3] == [b"host1:1000:1001 [0] NCCL INFO \xff\xfe\x80 x", b"", b"\xc3"]
    assert new.endswith(b"no end host1:1000:47")


def test_the_samples_of_the_catalogue_hold_nothing_that_only_free_text_shows() -> None:
    """A known message is searched field by field. What a search of all its text finds must be found then, too."""
    public = vocabulary(load())
    lines, free = (Lines(Pseudonyms(public), load()) for _ in range(2))
    for message in load().messages:
        for sample in message.samples if message.where == "nccl" else ():
            lines.names._names.clear()
            for table in lines._known:
                table.clear()
            lines.block(b"NCCL INFO " + sample.text.encode())
            known = {name for table in lines.names._names.values() for name in table}
            free.names._names.clear()
            free._free(sample.text)
            rest = {(kind, name) for kind in ("ip", "mac", "user", "token") for name in free.names._names.get(kind, ())}
            assert {name for _, name in rest} <= known, (message.name, sample.text)


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=30),
            st.sampled_from([line.encode() for line in LINES]),
            st.sampled_from([b"\r", b"NCCL INFO", b"h:1:2 [0] NCCL INFO ", b"h:1:2 [0] NCCL WARN x\r\n", b"\n\n"]),
        ),
        max_size=60,
    )
)
def test_places_of_names_follow_each_other_and_lie_in_lines(parts: list[bytes]) -> None:
    data, last = b"\n".join(parts), 0
    lines = Lines(Pseudonyms(vocabulary(load())), load())
    for start, end, kind in lines.places(data):
        assert last <= start < end <= len(data)
        assert b"\n" not in data[start:end]
        assert data[last:start].strip() == b"" or b"NCCL" in data[:start]  # all text but messages of NCCL is searched
        assert kind in range(7)
        last = end


def test_a_host_of_digits_is_replaced_only_where_a_host_stands() -> None:
    texts = [
        b"0:4711:4712 [0] NCCL INFO comm 0x1 rank 0 nranks 2 - Init START",
        b"[rank0]: x 0 y 0:4711",
        b"node0:4711:4712 [0] NCCL INFO 0",
        b"node0:4711:4713 [0] NCCL INFO 0",
    ]
    new, _ = lines_of(texts)
    assert new[0] == b"t1:1000:1001 [0] NCCL INFO comm 0x1 rank 0 nranks 2 - Init START"
    assert new[1].startswith(b"[rank0]: x 0 y ")
    assert new[2] == b"host1:1000:1001 [0] NCCL INFO 0"


def test_a_block_is_scrubbed_as_its_lines_are() -> None:
    data = "\n".join((*LINES, "", "x\r", *LINES)).encode()
    names = [Pseudonyms(vocabulary(load())) for _ in range(2)]
    whole, each = (Lines(n, load()) for n in names)
    whole.block(data)
    for line in data.split(b"\n"):
        each.block(line)
    whole.settle()
    each.settle()
    assert whole.block(data).split(b"\n") == [each.block(line) for line in data.split(b"\n")]


def test_more_places_than_the_scanner_returns_at_once_are_found() -> None:
    line = b"gpu17:4711:4712 [0] NCCL INFO Bootstrap : Using eth0:10.1.2.3<0>\n"
    lines = Lines(Pseudonyms(vocabulary(load())), load())
    lines.block(line)
    lines.settle()
    assert lines.block(line * 40_000) == lines.block(line) * 40_000
    assert b"gpu17" not in lines.block(line)


def test_a_line_of_any_length_is_scrubbed_in_pieces(folder: Path) -> None:
    text = b"gpu17:4711:4712 [0] NCCL INFO x\n" + b'{"host": "gpu17"}, ' * 60_000 + b"\nend\n"
    new = scrubbed(folder, text)
    assert b"gpu17" not in new
    assert new.count(b"\n") == 3
    assert new.endswith(b"\nend\n")


def test_private_keys_are_replaced_line_by_line(folder: Path) -> None:
    begin, end = "-----BEGIN RSA PRIVATE " + "KEY-----", "-----END RSA PRIVATE " + "KEY-----"
    new = scrubbed(folder, f"x\n{begin}\nMIIEow\nabc=\n{end}\ny {begin}zzz{end}\n".encode()).decode()
    assert new == f"x\n{begin}\n[key]\n[key]\n{end}\ny {begin}[key]{end}\n"
    keys = Keys()
    assert [keys.inside(line.encode()) for line in new.splitlines()] == [line.encode() for line in new.splitlines()]


NAMES = st.one_of(
    st.from_regex(r"[a-z]{4,8}[0-9]{2}", fullmatch=True).map(
        lambda h: f"{h}:31001:31002 [0] NCCL INFO Bootstrap : Using eth0:10.1.2.3<0>"
    ),
    st.from_regex(r"[a-z]{5,9}", fullmatch=True).map(lambda u: f"open /home/{u}/run.sh"),
    st.integers(1 << 24, (223 << 24) - 1).map(
        lambda n: f"connect to {n >> 24}.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}<5000>"
    ),
    st.integers(1000, 4_000_000).map(lambda n: f"worker died, pid {n}"),
    st.sampled_from(LINES),
    st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=40),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(texts=st.lists(NAMES, max_size=8))
def test_no_original_is_left_and_scrubbing_again_changes_nothing(texts: list[str]) -> None:
    lines = [text.encode() for text in texts]
    once, names = lines_of(lines)
    again, _ = lines_of(once)
    assert again == once
    whole = b"\n".join(once).decode()
    for kind in ("host", "user", "token", "ip", "mac", "uuid"):
        for name in names.mapping().get(kind, {}):
            if len(name) > 3 and not names.common(name):
                assert name not in whole.split(), (kind, name)


def test_names_are_the_same_in_all_files_and_in_their_names(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    (logs / "sub").mkdir(parents=True)
    (logs / "nccl.gpu17.31001.log").write_text("gpu17:31001:31002 [0] NCCL INFO peer gpu18<5000>\n")
    with gzip.open(logs / "sub" / "nccl.gpu18.31003.log.gz", "wb") as file:
        file.write(b"gpu18:31003:31004 [0] NCCL INFO peer gpu17<5000>\n")
    result = scrub(str(logs), str(tmp_path / "out"))
    assert sorted(os.path.relpath(name, tmp_path / "out") for name in result.written) == [
        "nccl.host1.10000.log",
        "sub/nccl.host2.10002.log",
    ]
    assert (
        tmp_path / "out" / "sub" / "nccl.host2.10002.log"
    ).read_text() == "host2:10002:10003 [0] NCCL INFO peer host1<5000>\n"
    assert not result.checked.counts


def test_what_cannot_be_scrubbed_is_left_out_and_named(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "a.log").write_text("gpu17:31001:31002 [0] NCCL INFO x\n")
    (logs / "core").write_bytes(b"\x7fELF" + bytes(12) + b"\x04\x00" + b"alice" * 100)
    (logs / ".netrc").write_text("machine x")
    (logs / "link.log").symlink_to(logs / "a.log")
    result = scrub(str(logs), str(tmp_path / "out"))
    assert sorted(os.path.basename(name) for name in result.left_out) == [".netrc", "core", "link.log"]
    assert os.listdir(tmp_path / "out") == ["a.log"]


def test_an_archive_becomes_a_folder_and_no_member_leaves_it(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("gpu17:31001:31002 [0] NCCL INFO x\n")
    with tarfile.open(tmp_path / "logs.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "a.log", "../../run/a.log")
    result = scrub(str(tmp_path / "logs.tar.gz"), str(tmp_path / "out"))
    assert [os.path.relpath(name, tmp_path / "out") for name in result.written] == ["run/a.log"]


def test_a_pickle_of_the_flight_recorder_is_written_as_json(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    entry = {
        "collective_seq_id": 1,
        "profiling_name": "nccl:all_reduce",
        "frames": [{"filename": "/home/alice/wombat.py", "name": "main", "line": 3}],
    }
    (logs / "trace_rank_0.pkl").write_bytes(pickle.dumps({"version": "2.5", "pg_config": {}, "entries": [entry]}))
    scrub(str(logs), str(tmp_path / "out"))
    (file,) = (tmp_path / "out").iterdir()
    assert file.name == "trace_rank_0.json"
    assert json.loads(file.read_text())["entries"][0]["frames"][0]["filename"] == "/home/user1/name1.py"


@pytest.mark.parametrize(("out", "why"), [("logs", "apart"), ("logs/out", "apart"), ("full", "not empty")])
def test_an_output_that_would_lose_something_is_refused(tmp_path: Path, out: str, why: str) -> None:
    for name in ("logs", "full"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.log").write_text("gpu17:31001:31002 [0] NCCL INFO x\n")
    with pytest.raises(InputError, match=why):
        scrub(str(tmp_path / "logs"), str(tmp_path / out))
    assert (tmp_path / "full" / "a.log").read_text().startswith("gpu17")


def test_the_check_names_file_line_and_kind_and_never_the_secret(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("\n".join(("fine", *LINES)))
    found = check(find(str(tmp_path / "a.log"))[0], load())
    kinds = {(left.line, left.kind) for left in found.left}
    assert {
        (2, "host name"),
        (2, "user name"),
        (3, "address"),
        (7, "token or password"),
        (9, "hardware address"),
    } <= kinds
    for left in found.left:
        assert not any(secret in left.text for secret in SECRETS.values())


@pytest.mark.parametrize(
    ("kind", "kept"), [("host", "gpu-node17:"), ("ip", "10.12.13.14"), ("path", "/home/alice/wombat/train_wombat.py")]
)
def test_a_kind_can_be_kept(tmp_path: Path, kind: str, kept: str) -> None:
    (tmp_path / "a.log").write_text("\n".join(LINES))
    result = scrub(str(tmp_path / "a.log"), str(tmp_path / "b.log"), keep=[kind])
    text = (tmp_path / "b.log").read_text()
    assert kept in text
    assert kind not in result.mapping
