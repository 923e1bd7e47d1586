"""The proof of a report holds the words that its headline takes from the line."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from psmkit.analysis import analyze
from psmkit.catalogue import load
from psmkit.model import Report
from psmkit.report import Options, render
from psmkit.report.excerpt import excerpt
from psmkit.report.summary import behind, sentence
from tests.loggen import generate, scenario_names
from tests.report.test_excerpt import LINES, RAY, proof_of

WORD = re.compile(r"[^\W\d_]{5,}")
NCCL = "[2025-01-02 03:04:05] a-host-with-a-name:2271:2272 [0] misc/ibvwrap.cc:291 NCCL WARN "
MODIFY = (
    f"{NCCL}Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_bond_1:1, curr state INIT, next state RTR, "
    "local GID index 3, local GID ::ffff:10.20.41.83, remote GID ::ffff:10.21.41.77"
)
RETCODE = f"{NCCL}[Proxy Service 1] Failed to execute operation Connect from rank 1, retcode 6"
TESTS = (
    '  "stdout": "# nThread 1 nGpus 8 minBytes 268435456 maxBytes 268435456 step: 1048576(bytes) warmup iters: 5 iters: 20 agg iters: 1 '
    "validation: 1 graph: 0\\n#\\n# Using devices\\nweb-q2mzk: Test CUDA failure common.cu:941 'system not yet initialized'\\n"
    ' .. web-q2mzk pid 15: Test failure common.cu:891\\n",'
)
LIKE = [*(case.values[0] for case in LINES), RAY, MODIFY, RETCODE, TESTS]


def words(text: str) -> set[str]:
    return {word.lower() for word in WORD.findall(text)}


def untold(report: Report, width: int) -> set[str]:
    """Words that the headline takes from the message of its line and that the proof does not hold."""
    finding = behind(report)
    if finding is None or not finding.evidence:
        return set()
    message = finding.evidence[0].text.partition(" NCCL ")[2] or finding.evidence[0].text
    taken = words(sentence(report).partition(": ")[2]) & words(message)
    # a word that breaks between two rows is whole in the joined rows
    return taken - words(proof_of(render(report, "text", Options(width=width))))


@pytest.mark.parametrize("dress", ["", "10.0.4.66: ", "(Worker pid=4321, ip=10.0.0.87) "])
@pytest.mark.parametrize("number", range(len(LIKE)))
def test_the_words_of_the_headline_are_in_the_proof(number: int, dress: str, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(f"{dress}{LIKE[number]}\n")
    assert not untold(analyze([log]), 100)


@pytest.mark.parametrize(("name", "dialect"), sorted(scenario_names())[::9])
def test_the_words_of_the_headline_of_a_known_fault_are_in_the_proof(name: str, dialect: str, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(generate(name, dialect).merged())
    report = analyze([log])
    assert not untold(report, 100) | untold(report, 72)


def test_each_message_of_the_catalogue_survives_a_long_prefix_and_a_long_end() -> None:
    for entry in load().messages[:: 1 if os.environ.get("PSMKIT_LOSSES") == "every" else 10]:
        for sample in entry.samples:
            title = sample.text[:90].rpartition(" ")[0]
            line = f"{'step 1 of 20; ' * 12}{sample.text} {'and more ' * 20}"
            cut = excerpt(line, 230, title, (), "")
            assert len(cut) <= 230
            assert words(title) <= words(cut), (sample.text, cut)


def test_the_payload_of_a_network_error_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(f"{MODIFY}\n")
    proof = proof_of(render(analyze([log]), "text", Options(width=100)))
    assert "curr state INIT, next state RTR, local GID index 3, local GID ::ffff:10.20.41.83" in proof
    assert "remote GID ::ffff:10.21.41.77" in proof


def test_a_proof_is_at_most_three_rows_and_a_short_one_a_single_row(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    for line, rows in ((MODIFY + ", " + "x" * 4000, 4), ("h:2:2 [0] x.cc:2 NCCL WARN Cuda failure 'out of memory'", 2)):
        log.write_text(line + "\n")
        page = render(analyze([log]), "text", Options(width=100)).splitlines()
        at = next(n for n, row in enumerate(page) if "proof:" in row)
        assert next(n for n in range(1, 9) if not page[at + n].startswith(" " * 11)) < rows
        assert all(len(row) <= 100 for row in page[at : at + rows])
