"""Evidence that is no log of NCCL survives scrubbing: the same findings, and no name or secret is left."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import zstandard

import psmkit
from psmkit.scrub import scrub
from tests.analysis.test_foreign import dump, entry
from tests.analysis.test_inspections import inspected
from tests.analysis.test_stacks import BARRIER, GETFD, LOADER, SYNC, spy
from tests.logparse.foreign.test_ras import ANSWER
from tests.logparse.test_records import Make, make, scene
from tests.scrub.test_scrub import SECRETS
from tests.scrub.verdicts import differences, essence

__all__ = ["make", "scene"]  # fixtures

#: Joined here, so that no scanner for secrets takes them for real ones.
JWT = ".".join(("eyJhbGciOiJIUzI1NiJ9", "eyJzdWIiOiIxMjM0In0", "c2lnbmF0dXJlb2Z0aGlz"))
PLANTED = {
    "host": "gpu-node17",
    "user": "alice",
    "path": "wombat",
    "token": SECRETS["hugging face"],
    "mail": "bob.smith",
    "domain": "acme.com",
    "IPv6": "fd00:1:2::17",
    "AWS key": SECRETS["aws"],
    "JWT": JWT,
}
WORDS = (
    "python", "/home/alice/wombat/train.py", f"--hub-token={PLANTED['token']}", "--mail=bob.smith@acme.com", "--rdzv-endpoint=[fd00:1:2::17]:29500",
    f"AWS_ACCESS_KEY_ID={PLANTED['AWS key']}", f"--auth=Bearer {JWT}",
)  # fmt: skip
COMMAND = " ".join(WORDS)


def inspections() -> list[dict[str, object]]:
    seen = [inspected(r, GETFD, peer=3, age=90) for r in (0, 1, 2)] + [inspected(3, BARRIER)]
    for one in seen:
        one |= {"host": "gpu-node17", "command": list(WORDS), "notes": [{"what": COMMAND, "remedy": "ask alice"}]}
        one["libraries"] = [
            {"name": "libnccl.so.2", "path": "/home/alice/wombat/libnccl.so.2", "build_id": "ab" * 20, "text": "2.27.3"}
        ]
    return seen


def flights() -> dict[str, str]:
    frames = [{"name": "step", "filename": "/home/alice/wombat/train.py", "line": 41}]
    waiting = [dump(entry(1, frames=frames), entry(2, frames=frames), entry(3, "started", frames=frames))]
    dumps = [*waiting, dump(entry(1, frames=frames), entry(2, frames=frames)), *waiting]
    for one in dumps:
        one |= {"hostname": "gpu-node17", "command": COMMAND}
    return {f"trace_rank_{rank}.json": json.dumps(one) for rank, one in enumerate(dumps)}


def gdb(pid: int, frames: tuple[str, ...]) -> str:
    places = [frame.partition(" (")[::2] for frame in frames]
    lines = (
        f"#{n}  0x00007f0000000{n}00 in {name} () from /home/alice/wombat/{where.rstrip(')').partition(':')[0]}\n"
        for n, (name, where) in enumerate(places)
    )
    return f'Attaching to process {pid}\n\nThread 1 (Thread 0x7f0000000740 (LWP {pid}) "python"):\n{"".join(lines)}'


def eu(pid: int, frames: tuple[str, ...]) -> str:
    lines = (
        f"#{n}  0x00007f00000000{n}0 {frame.partition(' (')[0]} - /home/alice/wombat/libnccl.so.2\n"
        for n, frame in enumerate(frames)
    )
    return f"PID {pid} - process\nTID {pid}:\n{''.join(lines)}"


def ras() -> str:
    text = json.dumps(ANSWER, indent=1)
    document = json.loads(text)
    document["host"], document["command"] = "gpu-node17", COMMAND
    return json.dumps(document, indent=1)


KINDS: Mapping[str, Mapping[str, str]] = {
    "inspections": {"seen.inspect.json": json.dumps(inspections())},
    "inspections on lines": {"seen.json": "\n".join(map(json.dumps, inspections()))},
    "flight recorder": flights(),
    "RAS": {"ras.json": ras()},
    "py-spy": {"s.txt": "".join(spy(4000 + r, LOADER if r == 1 else SYNC, r).replace("train.py\n", COMMAND + "\n") for r in range(4))},
    "py-spy of commands": {"s.txt": "".join(spy(4000 + r, SYNC, r).replace("python train.py", COMMAND) for r in range(4))},
    "gdb": {"s.txt": "".join(gdb(4000 + r, BARRIER if r else GETFD) for r in range(3))},
    "eu-stack": {"s.txt": "".join(eu(4000 + r, BARRIER if r else GETFD) for r in range(3))},
}  # fmt: skip


def texts(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("kind", KINDS)
def test_other_evidence_is_judged_the_same_and_holds_no_name(tmp_path: Path, kind: str) -> None:
    (tmp_path / "in").mkdir()
    for name, text in KINDS[kind].items():
        (tmp_path / "in" / name).write_text(text)
    assert psmkit.analyze([tmp_path / "in"]).findings
    assert list(differences(tmp_path / "in", tmp_path)) == []
    result = scrub(str(tmp_path / "in"), str(tmp_path / "out"))
    assert not result.left_out
    for name, text in texts(tmp_path / "out").items():
        assert not [what for what, planted in PLANTED.items() if planted in name + text]
        if name.endswith(".json") and kind != "inspections on lines":
            json.loads(text)


def archive(path: Path, members: Mapping[str, bytes]) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(f"job-gpu-node17/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    path.write_bytes(zstandard.ZstdCompressor().compress(packed.getvalue()))


@pytest.fixture
def recorded(tmp_path: Path, make: Make) -> Path:
    """An archive of psmkit record, with a record file of the host."""
    fact = "psmkit-record/1"
    members = {
        "manifest.json": json.dumps({"schema": fact, "host": "gpu-node17", "command": COMMAND}),
        "record.log": f"[2026-11-27 23:19:38] psm record: {COMMAND} on gpu-node17 stands still\n",
        "facts/environment.json": json.dumps({"schema": fact, "USER": "alice", "TOKEN": PLANTED["token"]}),
        "output/4001.txt": f"gpu-node17: alice runs {COMMAND}\n",
    }
    for one in inspections():
        members[f"stacks/1/gpu-node17-{one['pid']}.inspect.json"] = json.dumps(one) + "\n"
    record = make(pid=4003, host=b"gpu-node17", rank=3)
    path = tmp_path / "job.psmkit.tar.zst"
    archive(
        path, {name: text.encode() for name, text in members.items()} | {f"records/{record.name}": record.read_bytes()}
    )
    return path


def test_an_archive_of_record_is_judged_the_same_and_names_what_is_left_out(tmp_path: Path, recorded: Path) -> None:
    result = scrub(str(recorded), str(tmp_path / "out"))
    assert sorted(name.partition(":job-gpu-node17/")[2] for name in result.left_out) == [
        "facts/environment.json",
        "manifest.json",
    ]
    assert not result.checked.left
    found = texts(tmp_path / "out")
    assert any("record of process" in text for name, text in found.items() if "/records/" in name)
    for name, text in found.items():
        assert not [what for what, planted in PLANTED.items() if planted in name + text], name
    assert essence(psmkit.analyze([tmp_path / "out"])) == essence(psmkit.analyze([recorded]))


def test_a_record_file_is_written_as_the_lines_that_are_read_of_it(tmp_path: Path, make: Make) -> None:
    record = make(pid=4711, host=b"gpu-node17", rank=3)
    result = scrub(str(record), str(tmp_path / "out.log"))
    assert any("written as text" in note for note in result.notes)
    text = (tmp_path / "out.log").read_text()
    # The thread of the events keeps the number that the kernel gave it, which may come before 4711.
    assert re.search(r"host1:(100[01]):\1 \[0\] NCCL INFO record of process \1, rank 3, command driver", text)
    assert "gpu-node17" not in text
    assert essence(psmkit.analyze([tmp_path / "out.log"])) == essence(psmkit.analyze([record]))
