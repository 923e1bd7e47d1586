"""What is said of a log is said of its scrubbed copy: a fixed sample; ``python -m tests.scrub.verdicts`` compares all inputs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests import mutilate
from tests import test_mutilated as damaged
from tests.analysis.frozen import DATA
from tests.loggen import generate, scenario_names
from tests.scrub.verdicts import differences

_WAYS = {**mutilate.DRESS, **mutilate.CUTS, **mutilate.DAMAGE}
_SCENARIOS = random.Random(18).sample(sorted(scenario_names()), 12)
#: The last ones have damaged names of hosts: text before them, without their beginning, with other letters.
_DAMAGED = (
    "passsm-8gpu.log@colours",
    "passsm-8gpu.log@docker",
    "ok_n4_psm_64K@glued",
    "ok_n4_psm_64K@flipped",
    "ok_n4_2nodes_psmnet@flipped",
    "ok_n4_2nodes_psmnet@glued",
    "fault_e1_n4_rank1_cumem_import_oom@flipped",
    "nccl230_ok_n4_sendrecv_hostkernels@flipped",
)


@pytest.mark.parametrize(
    "name", sorted(path.name for path in (DATA / "logs").iterdir() if path.suffix not in (".toml", ".md"))
)
def test_a_real_log_keeps_its_verdict(tmp_path: Path, name: str) -> None:
    assert list(differences(DATA / "logs" / name, tmp_path)) == []


@pytest.mark.parametrize(("name", "dialect"), _SCENARIOS)
def test_a_scenario_keeps_its_verdict(tmp_path: Path, name: str, dialect: str) -> None:
    (tmp_path / "ranks").mkdir()
    for file, text in generate(name, dialect, seed=2).files().items():
        (tmp_path / "ranks" / file).write_text(text)
    assert list(differences(tmp_path / "ranks", tmp_path)) == []


@pytest.mark.parametrize("subject", _DAMAGED)
def test_a_damaged_log_keeps_its_verdict(tmp_path: Path, subject: str) -> None:
    end, _, way = subject.partition("@")
    name = next(name for name in damaged.SUBJECTS if name.endswith(end))
    (tmp_path / "logs").mkdir()
    for file, data in _WAYS[way](damaged.load(name), random.Random(name)).items():
        (tmp_path / "logs" / file).write_bytes(data)
    assert list(differences(tmp_path / "logs", tmp_path)) == []
