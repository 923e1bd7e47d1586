"""The page of each kind of evidence, as an outline: what it shows, in which order, and how many rows, marks and arrows it has.

PSMKIT_UPDATE_GOLDEN=1 renews the outlines.
"""

from __future__ import annotations

import html
import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.cases.story import tell
from psmkit.analysis.story import story
from psmkit.model.story import Story
from psmkit.report.html import render

GOLDEN = Path(__file__).parent / "golden" / "pages"
DATA = Path(__file__).parents[1] / "data"
CASES = Path(__file__).parents[2] / "examples" / "cases"

#: Each kind of evidence, and an input that has it.
KINDS = {
    "log of each rank": DATA / "logs" / "fault_a2_n4_sigstop_rank1_in_setup",
    "one log of 8 GPUs": DATA / "logs" / "passsm-8gpu.log",
    "healthy run on two nodes": DATA / "logs" / "ok_n4_2nodes_psmnet",
    "error of CUDA": DATA / "logs" / "fault_e1_n4_rank1_cumem_import_oom",
    "records of steps": "fault-hang-step",
    "records of the net transport": "fault-net-drop-post",
    "sanitizer": "variant-whole-struct-legacy",
    "leak": "variant-net-no-free-nonblocking",
    "torch's watchdog": CASES / "pytorch-174288",
    "RAS": CASES / "nccl-1730",
    "network error": CASES / "nccl-2203",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    names = tuple(f"{value}/" for value in KINDS.values() if isinstance(value, str))
    with tarfile.open(DATA / "v01" / "runs.tar.xz") as archive:
        members = [m for m in archive.getmembers() if m.name.startswith(names)]
        archive.extractall(folder, members, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder


def outline(told: Story, page: str, folder: Path) -> Iterator[str]:
    body = page[page.index("<main>") : page.index("</main>")]
    yield html.unescape(re.sub("<[^>]+>", "", body[body.index("<h1>") : body.index("</h1>")])).replace(f"{folder}/", "")
    yield from (f"{term}: " for term in re.findall("<dt>([^<]+)</dt>", body))
    yield ""
    for name, section in re.findall(r'<section id="(\w+)">(.*?)</section>', body, re.DOTALL):
        rows = section.count("<tr") - section.count("<thead")
        parts = [f"{rows} rows"] if rows else []
        codes = re.findall(r'<span class="code mono">([^<]+)</span>', section)
        yield f"[{name}] {'; '.join([*parts, *codes])}".rstrip()
    timeline = told.timeline
    yield ""
    yield f"axis: {timeline.axis.unit.value}; {len(timeline.tracks)} tracks, {len(timeline.marks)} marks"
    for track in timeline.tracks:
        if track.parent < 0:
            yield f"  {re.sub('[0-9]{3,}', 'N', track.name)}"
    for what, rows_ in (("spans", timeline.spans), ("arrows", timeline.arrows)):
        counts = Counter(timeline.kinds[kind].name for kind in rows_.kind)
        yield from (f"{what}: {count} {name}" for name, count in sorted(counts.items()))
    yield f"open spans: {int(timeline.spans.open.sum())}"


@pytest.mark.parametrize("kind", KINDS)
def test_page_of_each_kind_of_evidence_has_its_outline(kind: str, runs: Path) -> None:
    source = KINDS[kind]
    path = runs / source if isinstance(source, str) else source
    if (path / "case.toml").exists():
        path = runs / f"{path.name}.log"
        path.write_text(tell(CASES / path.stem))
    told = story([str(path)])
    page = render(told)
    text = "\n".join(line.rstrip() for line in outline(told, page, path)) + "\n"
    golden = GOLDEN / f"{re.sub('[^a-z0-9]+', '-', kind.lower())}.txt"
    if os.environ.get("PSMKIT_UPDATE_GOLDEN"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text(), "to renew it, run this test with PSMKIT_UPDATE_GOLDEN=1"


def test_no_outline_is_left_over() -> None:
    assert len(list(GOLDEN.glob("*.txt"))) == len(KINDS)
