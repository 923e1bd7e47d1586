"""The commands `psmkit audit structs` and `psmkit audit symbols`, and `psmkit analyze --lib`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from psmkit.cli.app import main
from psmkit.cli.config import tree
from tests.audit.build import CUDA, library
from tests.audit.transport import FLAGS, source

LEAKY = f"{CUDA}\nstruct p2pShmProxyInfo {{ void *shm; cudaStream_t stream; char pad[%d]; }} one;\n"
LOG = Path(__file__).parents[1] / "data" / "logs" / "passsm-8gpu.log"


@pytest.fixture
def leaky(tmp_path: Path) -> Path:
    return library(tmp_path, LEAKY % 224)


def test_the_text_names_type_fields_and_places(leaky: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "structs", str(leaky)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("1 warning: 1 type")
    assert "struct p2pShmProxyInfo leaves the process with a pointer and a stream" in said
    assert f"{leaky}.c:7" in said and "--wire" in said


def test_the_level_decides_the_status(leaky: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "structs", str(leaky), "--fail-on", "warning"]) == 1
    assert main(["audit", "structs", str(leaky), "--fail-on", "never"]) == 0
    capsys.readouterr()


def test_a_clean_library_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = library(tmp_path, "struct ncclP2pRequest { unsigned long size; int refcount; } one;\n")
    assert main(["audit", "structs", str(path), "-v"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("nothing found: 1 type") and "struct ncclP2pRequest" in said


def test_a_library_without_a_known_type_cannot_be_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = library(tmp_path, "struct mine { void *p; } one;\n")
    assert main(["audit", "structs", str(path)]) == 2
    assert "--wire" in capsys.readouterr().err
    assert main(["audit", "structs", str(path), "--wire", "mine", "--fail-on", "warning"]) == 1
    assert main(["audit", "structs", str(path), "--wire", "other"]) == 2
    assert "it has no type other" in capsys.readouterr().err


def test_json_holds_types_and_findings(leaky: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["audit", "structs", str(leaky), "--format", "json"])
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "psmkit.audit-structs/1" and not data["clean"]
    (struct,) = data["structs"]
    assert (struct["name"], struct["size"]) == ("struct p2pShmProxyInfo", 240)
    assert [field["path"] for field in struct["local"]] == ["shm", "stream"]


def test_sarif_has_places_and_suppressions(leaky: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = tmp_path / "known.toml"
    known.write_text('[[suppress]]\nstruct = "p2pShmProxyInfo"\nmember = "shm"\nreason = "never read"\n')
    output = tmp_path / "audit.sarif"
    assert (
        main(["audit", "structs", str(leaky), "--suppress", str(known), "--format", "sarif", "--output", str(output)])
        == 0
    )
    capsys.readouterr()
    (run,) = json.loads(output.read_text())["runs"]
    kept, taken = run["results"]
    assert kept["locations"][0]["physicalLocation"]["region"]["startLine"] == 7
    assert kept["ruleId"] == "PSM521" and "suppressions" not in kept
    assert taken["suppressions"] == [{"kind": "external", "justification": "never read"}]


def test_symbols_of_the_plugins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tree() / "lib" / "libnccl-net-psm.so"
    assert main(["audit", "symbols", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("nothing found") and "ncclNetPlugin_v8" in said and "libc.so.6" in said
    assert main(["audit", "symbols", str(path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["libraries"][0]["kind"] == "plugin"
    assert main(["audit", "symbols", str(tmp_path / "none.so")]) == 2


# ---- contract ----


def test_the_contract_as_text_json_and_sarif(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = source(tmp_path, PROXYFREE="free(resources);")
    words = ["audit", "contract", str(path), "--cflags", FLAGS]
    assert main(words) == 1
    said = capsys.readouterr().out
    assert said.startswith("1 error: 1 direction of transports") and "Free does not release a stream" in said
    assert "LEFT" in said and "A: every mode" in said and f"{path}:" in said
    output = tmp_path / "contract.json"
    assert main([*words, "--format", "json", "--output", str(output), "--fail-on", "never"]) == 0
    (transport,) = json.loads(output.read_text())["transports"]
    assert transport["name"] == "testTransport send" and transport["messages"][0][-1] == "fits"
    assert main([*words, "--format", "sarif", "--output", str(output)]) == 1
    (run,) = json.loads(output.read_text())["runs"]
    assert run["results"][0]["ruleId"] == "PSM524" and run["results"][0]["level"] == "error"
    capsys.readouterr()


def test_a_mode_that_is_no_pair_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "contract", str(source(tmp_path)), "--mode", "PASS_SM"]) == 2
    assert "give a name and 0 or 1" in capsys.readouterr().err


# ---- analyze --lib ----


def _codes(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    main(["analyze", str(LOG), "--format", "json", *words])
    return {one["code"]: one["title"] for one in json.loads(capsys.readouterr().out)["findings"]}


def test_without_a_library_a_size_is_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    found = _codes(capsys)
    assert "PSM704" in found and "PSM521" not in found


def test_with_the_library_the_hint_becomes_a_proof(leaky: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _codes(capsys, "--lib", str(leaky))
    assert "PSM704" not in found
    assert (
        found["PSM521"]
        == "a Setup response on the send side is a whole struct p2pShmProxyInfo, with 2 process-local fields"
    )


def test_with_a_library_whose_answer_holds_nothing_local_the_hint_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = library(tmp_path, "struct p2pShmProxyInfo { unsigned long words[30]; } one;\n")
    found = _codes(capsys, "--lib", str(path))
    assert "PSM704" not in found and "PSM521" not in found


def test_with_a_library_that_has_no_such_answer_the_hint_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = _codes(capsys, "--lib", str(library(tmp_path, LEAKY % 8)))
    assert "PSM704" in found and "PSM521" not in found


def test_a_library_of_another_release_than_the_log_proves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "job.log"
    log.write_text("node201:709393:709393 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n" + LOG.read_text("utf-8"))
    for release, used in (("2.21.5", True), ("2.26.2", False)):
        path = library(tmp_path, f'const char version[] = "NCCL version {release}+cuda12.4";\n' + LEAKY % 224)
        main(["analyze", str(log), "--format", "json", "--lib", str(path)])
        found = {one["code"]: one["title"] for one in json.loads(capsys.readouterr().out)["findings"]}
        assert ("PSM521" in found) is used and ("PSM704" in found) is not used
        said = f"the library given is NCCL {release}, but the log shows NCCL 2.21.5: its types were not used"
        assert found.get("PSM710") == (None if used else said)
