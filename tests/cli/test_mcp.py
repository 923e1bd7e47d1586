"""``psmkit mcp``, driven by the SDK's own client."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tarfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from psmkit import analyze
from psmkit.cli.app import main
from psmkit.cli.mcp_tools import Tools
from psmkit.model.errors import InputError

LOGS = Path(__file__).parents[1] / "data" / "logs"
HUNG = LOGS / "fault_a2_n4_sigstop_rank1_in_setup"
FAILED = LOGS / "fault_e1_n4_rank1_cumem_import_oom"


def served(roots: list[Path], use: Callable[[Client], Awaitable[None]]) -> None:
    """Run ``use`` with a client of a server in a process of its own."""

    async def run() -> None:
        command = StdioServerParameters(command=sys.executable, args=["-m", "psmkit", "mcp", *map(str, roots)])
        with anyio.fail_after(120):
            async with Client(stdio_client(command)) as client:
                await use(client)

    anyio.run(run)


async def answer(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return "".join(getattr(part, "text", "") for part in result.content)


def test_an_assistant_works_on_a_log(tmp_path: Path) -> None:
    async def use(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"analyze", "ops", "explain", "lines"}
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools.values())
        report = analyze([HUNG])
        told = await answer(client, "analyze", paths=[str(HUNG)])
        assert (told["verdict"], told["findings_in_all"]) == (report.verdict.value, len(report.findings))
        assert [one["rank"] for one in told["who"]] == [culprit.global_rank for culprit in report.culprits]
        proof = told["proof"]
        around = await answer(client, "lines", file=proof["file"], line=proof["line"], before=1, after=1)
        assert [line["line"] for line in around["lines"]] == [proof["line"] - 1, proof["line"], proof["line"] + 1]
        assert around["lines"][1]["text"] == proof["text"]
        calls = await answer(client, "ops", paths=[str(HUNG)], pending=False, ranks="1", limit=2)
        assert len(calls["ops"]) == 2 < calls["ops_in_all"] and calls["ops"][0]["op"].startswith("0x")
        waiting = await answer(client, "ops", paths=[str(HUNG)])
        assert waiting["ops_in_all"] < calls["ops_in_all"] and not any(row["complete"] for row in waiting["ops"])
        explained = await answer(client, "explain", what=proof["code"])
        assert explained["explained"][0]["code"] == proof["code"]
        one = await answer(client, "analyze", paths=["fault_e1_n4_rank1_cumem_import_oom"], code="psm509")
        assert {finding["code"] for finding in one["findings"]} == {"PSM509"}
        assert "no message of the catalogue" in await refusal(client, "explain", what="nonsense of nobody")
        assert "this server reads only" in await refusal(client, "lines", file="/etc/passwd", line=1)
        assert "standard input" in await refusal(client, "analyze", paths=["-"])
        assert "path" in await refusal(client, "analyze", path=str(HUNG))
        assert "not a list of ranks" in await refusal(client, "ops", paths=[str(HUNG)], ranks="x")
        assert "no NCCL line" in await refusal(client, "ops", paths=[str(tmp_path / "notes.txt")])

    (tmp_path / "notes.txt").write_text("nothing\n")
    served([LOGS, tmp_path], use)


def test_a_server_ends_with_its_input() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "psmkit", "mcp", str(HUNG)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_root_that_does_not_exist_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", str(tmp_path / "none")]) == 2
    assert "no such file or folder" in capsys.readouterr().err


def test_links_lead_to_no_file_outside(tmp_path: Path) -> None:
    secret = tmp_path / "secret.log"
    secret.write_text("h:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 2 - Init START\n")
    root = tmp_path / "root"
    root.mkdir()
    (root / "good.log").write_text("h:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n")
    tools = Tools([root])
    assert tools.analyze()["read"]["files"] == 1
    (root / "link.log").symlink_to(secret)
    for paths in ([str(root)], ["link.log"], [str(root / "*.log")], [str(root / ".." / "secret.log")]):
        with pytest.raises(InputError, match="reads only"):
            tools.analyze(paths)
    with pytest.raises(InputError, match="reads only"):
        tools.lines("link.log", 1)
    with pytest.raises(InputError, match="reads only"):
        tools.lines("../secret.log", 1)


def test_the_folder_that_was_named_is_checked_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link.log").symlink_to("/etc/passwd")
    with pytest.raises(InputError, match="reads only"):
        Tools([tmp_path / "root"]).analyze()


def test_lines_of_compressed_files_and_archives_are_shown(tmp_path: Path) -> None:
    text = "".join(f"h:1:1 [0] NCCL INFO line {n}\n" for n in range(1, 5001))
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "rank0.log").write_text(text)
    with tarfile.open(tmp_path / "logs.tar", "w") as archive:
        archive.add(tmp_path / "rank0.log", "rank0.log")
    tools = Tools([tmp_path])
    for name in ("a.log.gz", "rank0.log", "logs.tar:rank0.log"):
        shown = tools.lines(name, 4999, before=2, after=100)["lines"]
        assert [line["line"] for line in shown] == [4997, 4998, 4999, 5000]
        assert shown[-1]["text"].endswith("line 5000")
    with pytest.raises(InputError, match="no line 5001"):
        tools.lines("rank0.log", 5001, before=0)
    assert len(tools.lines("rank0.log", 1000, before=5000, after=5000)["lines"]) == 200


def test_answers_stay_small(tmp_path: Path) -> None:
    log = tmp_path / "big.log"
    log.write_text(
        "".join(f"h:1:1 [0] NCCL WARN Call to bind failed : {'x' * 5000} {n}\n" for n in range(500))
        + "\x1b[31m"
        + "y" * 10_000_000
    )
    tools = Tools([tmp_path])
    assert len(json.dumps(tools.analyze())) < 60_000
    last = tools.lines("big.log", 501, before=0)["lines"][0]["text"]
    assert len(last) <= 2000 and last.startswith("\\x1b[31m")


def test_a_report_is_made_again_when_its_log_grew(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("h:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n")
    tools = Tools([tmp_path])
    assert tools.analyze()["read"]["lines"] == 1
    with log.open("a") as file:
        file.write("h:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n")
    assert tools.analyze()["read"]["lines"] == 2
