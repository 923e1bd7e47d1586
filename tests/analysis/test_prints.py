"""What the prints of a fork's data path prove: which end of a connection stopped, and what they do not prove."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from psmkit.analysis.pipeline import analyze
from psmkit.catalogue import load
from psmkit.model import Finding, Report, Severity, Verdict
from tests.analysis.texts import Rank, of, ranks, report_of, watchdog

FORK = Path(__file__).parents[2] / "examples" / "fork" / "psmkit.toml"
TIMES = tuple(f"2025-11-21 10:00:{second:02d}" for second in range(0, 60, 6))


def prints(log: Rank, text: str, times: Iterable[str] = TIMES) -> None:
    """A line that the progress thread prints again and again."""
    side = "Send" if log.rank == 0 else "Recv"
    for time in times:
        log.line(f"psmP2p{side}ProxyProgress peer {1 - log.rank} channel 0 {text}", "progress", time=time)


def job(send: Callable[[Rank], object], recv: Callable[[Rank], object]) -> list[Rank]:
    logs = ranks(2)
    send(logs[0])
    recv(logs[1])
    return logs


def report(tmp_path: Path, logs: Iterable[Rank], *, toml: Path = FORK, launcher: str = "") -> Report:
    return report_of(tmp_path, logs, launcher, [toml])


def one(found: Report) -> Finding:
    (finding,) = of(found.findings, "PSM307")
    return finding


def full(log: Rank) -> None:
    prints(log, "step==320 canSend=NO recvTail=320 sendHead=320")


def behind(log: Rank) -> None:
    prints(log, "step==312 recvTail=320 sendHead=320")


def test_shipped_file_understands_its_samples() -> None:
    known = load([FORK])
    samples = [(m.name, s) for m in known.messages if m.subsystem == "fork" for s in m.samples]
    assert len(samples) >= 6
    for name, sample in samples:
        found = known.match(sample.text)
        assert found is not None and (found[0].name, found[1]) == (name, sample.fields)


def test_receiver_with_data_on_stream_0_is_the_seeds_bug(tmp_path: Path) -> None:
    def recv(log: Rank) -> None:
        prints(log, "copies on stream (nil)", TIMES[:1])
        behind(log)

    found = report(tmp_path, job(full, recv))
    finding = one(found)
    assert (finding.severity, finding.culprits, finding.ranks) == (Severity.ERROR, (1,), (0, 1))
    assert "rank 0 -> rank 1, channel 0: still for 54.0 s at step 312; rank 1, the receiver, stopped" in finding.title
    assert "its copies are on stream 0x0: this is the legacy stream" in finding.title
    assert finding.explanation is not None and "canSend=NO, printed 10 times without a change" in finding.explanation
    assert found.verdict is Verdict.HUNG and [c.rank for c in found.culprits] == [1]


def test_sender_with_room_that_does_not_post_is_the_one_that_stopped(tmp_path: Path) -> None:
    found = one(
        report(
            tmp_path,
            job(
                lambda log: prints(log, "step==320 canSend=YES recvTail=328 sendHead=320"),
                lambda log: prints(log, "step==320 recvTail=328 sendHead=320"),
            ),
        )
    )
    assert (found.severity, found.culprits) == (Severity.ERROR, (0,))


def test_copies_whose_events_do_not_complete_name_their_end(tmp_path: Path) -> None:
    """The receiver waits for the sender, which has posted its copies and sees no event complete."""

    def send(log: Rank) -> None:
        prints(log, "copies on stream (nil)", TIMES[:1])
        prints(log, "step 327 event recorded", TIMES[:1])
        prints(log, "step 319 event done", TIMES[:1])
        prints(log, "step==328 canSend=NO recvTail=328 sendHead=320")

    found = one(report(tmp_path, job(send, lambda log: prints(log, "step==320 recvTail=328 sendHead=320"))))
    assert (found.severity, found.culprits) == (Severity.ERROR, (0,))
    assert "8 copies that it started below step 328 are not done; its copies are on stream 0x0" in found.title


def test_slots_that_the_sender_does_not_see_free_blame_neither_end(tmp_path: Path) -> None:
    found = one(report(tmp_path, job(full, lambda log: prints(log, "step==320 recvTail=328 sendHead=320"))))
    assert (found.severity, found.culprits) == (Severity.WARNING, ())
    assert "did not publish it, or" in found.title


def test_states_that_repeat_without_time_are_no_proof(tmp_path: Path) -> None:
    """A progress thread prints thousands of lines in a millisecond: the log may have been cut."""

    def bare(text: str) -> Callable[[Rank], None]:
        return lambda log: prints(log, text, [""] * 500)

    found = report(
        tmp_path,
        job(bare("step==320 canSend=NO recvTail=320 sendHead=320"), bare("step==312 recvTail=320 sendHead=320")),
    )
    assert (one(found).severity, one(found).culprits) == (Severity.WARNING, ())
    assert found.verdict is Verdict.INCONCLUSIVE and not found.culprits


def test_watchdog_proves_the_time_that_the_prints_lack(tmp_path: Path) -> None:
    logs = job(
        lambda log: prints(log, "step==320 canSend=NO recvTail=320 sendHead=320", [""] * 9),
        lambda log: prints(log, "step==312 recvTail=320 sendHead=320", [""] * 9),
    )
    finding = one(report(tmp_path, logs, launcher=watchdog(0, 1)))
    assert (finding.severity, finding.culprits) == (Severity.ERROR, (1,))


def test_wait_of_a_job_that_ends_in_order_is_no_finding(tmp_path: Path) -> None:
    """The sender waited for 54 s, as a slow application makes it; then both went on."""
    logs = job(full, behind)
    for log in logs:
        log.destroy()
    found = report(tmp_path, logs)
    assert not of(found.findings, "PSM307") and found.verdict is not Verdict.HUNG


def test_thread_that_went_on_with_other_lines_does_not_stand(tmp_path: Path) -> None:
    logs = job(full, behind)
    for log in logs:
        for step in range(400):
            prints(log, f"step=={step} recvTail=1 sendHead=1", TIMES[-1:])
            log.lines[-1] = log.lines[-1].replace("channel 0", "channel 1")  # another connection
    assert all(f.severity is Severity.WARNING and not f.culprits for f in of(report(tmp_path, logs).findings, "PSM307"))


def test_state_that_changes_at_last_does_not_stand(tmp_path: Path) -> None:
    def send(log: Rank) -> None:
        full(log)
        prints(log, "step==321 canSend=YES recvTail=328 sendHead=321", TIMES[-1:])

    def recv(log: Rank) -> None:
        behind(log)
        prints(log, "step==321 recvTail=329 sendHead=321", TIMES[-1:])

    assert not of(report(tmp_path, job(send, recv)).findings, "PSM307")


def test_bare_line_of_the_story_points_at_the_peer(tmp_path: Path) -> None:
    """It names neither its peer nor its side: two ranks leave one peer, and only a sender prints canSend."""
    logs = ranks(2)
    for time in TIMES:
        logs[0].line("step==320 canSend=NO recvTail=320 sendHead=320", "progress", time=time)
    finding = one(report(tmp_path, logs))
    assert (finding.severity, finding.culprits) == (Severity.WARNING, ())
    assert "rank 0 waits for rank 1, the receiver, to free a slot for step 320" in finding.title


def test_many_ends_cost_a_few_findings_and_each_keeps_one_state(tmp_path: Path) -> None:
    logs = ranks(2)
    for time in TIMES:
        for channel in range(40):
            for log, side, step in ((logs[0], "Send", 320), (logs[1], "Recv", 312)):
                log.line(
                    f"psmP2p{side}ProxyProgress peer {1 - log.rank} channel {channel} step=={step} recvTail=320 sendHead=320",
                    "progress",
                    time=time,
                )
    found = of(report(tmp_path, logs).findings, "PSM307")
    assert len(found) == 8 and {f.culprits for f in found} == {(1,)}


def test_psmkit_toml_beside_the_logs_is_found_and_named(tmp_path: Path) -> None:
    logs = job(full, behind)
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "psmkit.toml").write_text(FORK.read_text())
    for log in logs:
        (folder / f"nccl.rank{log.rank}.log").write_text("".join(line + "\n" for line in log.lines))
    for given in ([folder], sorted(folder.iterdir()), [folder / "nccl.rank0.log", folder / "nccl.rank1.log"]):
        found = analyze(given)
        assert one(found).culprits == (1,) and found.coverage.files == 2
        assert [n for n in found.coverage.notes if n.startswith(f"{folder / 'psmkit.toml'} was found beside the logs")]
    assert not [n for n in analyze([folder], catalogue=[folder / "psmkit.toml"]).coverage.notes if "beside" in n]


def test_error_of_a_rank_explains_why_its_peer_stands(tmp_path: Path) -> None:
    logs = job(full, behind)
    logs[1].warn("src/misc/socket.cc:57", "Cuda failure 700 'an illegal memory access was encountered'", "progress")
    logs[1].chain(1, "src/transport/p2p.cc:900", "src/proxy.cc:700", thread="progress")
    found = of(report(tmp_path, logs).findings, "PSM307")
    assert all(f.severity is Severity.WARNING and not f.culprits for f in found)


def test_worked_example_of_the_page_gives_what_the_page_shows(tmp_path: Path) -> None:
    page = (FORK.parents[2] / "docs" / "fork.md").read_text("utf-8")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    logs = tmp_path / "logs"
    logs.mkdir()
    for rank, text in enumerate(text for kind, text in blocks if kind == "log"):
        (logs / f"rank{rank}.log").write_text(text)
    (toml,) = (text for kind, text in blocks if kind == "toml")
    (logs / "psmkit.toml").write_text(toml)
    *_, console = (text for kind, text in blocks if kind == "console")
    found = analyze([logs])
    shown = " ".join(console.split())
    assert f"{found.verdict.value}: {found.reason}" in shown
    assert all(note.replace(str(tmp_path) + "/", "") in shown for note in found.coverage.notes)
    assert [c.rank for c in found.culprits] == [1] and not found.coverage.unmatched
