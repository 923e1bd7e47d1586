"""The contract between the two sides of a connection: sizes of messages, resources that Free releases, checks of the sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.audit import AuditError
from psmkit.audit.contract import ContractAudit, audit_contract
from psmkit.audit.structs import Suppression
from psmkit.model import Severity
from psmkit.model.errors import InputError
from tests.audit.transport import DESTROY, FLAGS, source


def _audit(
    folder: Path,
    *more: str,
    modes: dict[str, int] | None = None,
    suppress: list[Suppression] | None = None,
    **parts: str,
) -> ContractAudit:
    return audit_contract([source(folder, *more, **parts)], flags=FLAGS, modes=modes, suppress=suppress or [])


def _said(audit: ContractAudit) -> list[tuple[str, str, str]]:
    return [(one.code, one.severity.value, one.title) for one in audit.findings]


def test_a_transport_that_keeps_its_contract_is_clean(tmp_path: Path) -> None:
    audit = _audit(tmp_path)
    assert _said(audit) == []
    (half,) = audit.halves
    assert {cells for _, _, cells in half.resources} == {("released",)}
    assert [one[0] for one in half.resources] == [
        "struct resources resources",
        "stream resources->stream",
        "event resources->events + i",
    ]
    assert [(one[0], one[2], one[3], one[5]) for one in half.messages] == [
        ("Setup", "8", "64", "fits"),
        ("Connect", "0", "0", "fits"),
    ]


def test_an_answer_of_another_size_is_an_error(tmp_path: Path) -> None:
    audit = _audit(tmp_path, ANSWER="struct big")
    assert _said(audit) == [
        ("PSM523", "error", "sendSetup sends Setup with an answer of 160 bytes, proxySetup expects 64")
    ]
    places = [item.line for item in audit.findings[0].evidence]
    text = (tmp_path / "transport.cc").read_text().splitlines()
    assert "ncclProxyMsgSetup" in text[places[0] - 1] and "proxySetup(struct" in text[places[1] - 1]


def test_a_size_that_differs_in_a_mode_names_the_mode(tmp_path: Path) -> None:
    audit = _audit(
        tmp_path, PROXYSETUP="if (ncclParamPassSm() && respSize != sizeof(struct big)) return ncclInternalError;"
    )
    (finding,) = audit.findings
    assert finding.code == "PSM523" and finding.severity is Severity.ERROR
    assert "This is so in PASS_SM=1." in finding.explanation
    assert {one[5] for one in audit.halves[0].messages if one[0] == "Setup"} == {"fits", "REFUSED: PASS_SM=1"}


@pytest.mark.parametrize(
    "body", ["((struct big*)respBuff)->handle[0] = 1;", "struct big mine; memcpy(respBuff, &mine, sizeof(mine));"]
)
def test_a_handler_that_uses_more_than_it_gets_is_an_error(tmp_path: Path, body: str) -> None:
    audit = _audit(tmp_path, PROXYSETUP=body)
    assert _said(audit) == [("PSM523", "error", "proxySetup uses 160 bytes of an answer of 64 bytes")]


def test_what_free_leaves_is_an_error_if_every_way_leaves_it(tmp_path: Path) -> None:
    audit = _audit(tmp_path, PROXYFREE="if (resources) free(resources);")
    assert _said(audit) == [
        (
            "PSM524",
            "error",
            "testTransport send: Free does not release a stream (resources->stream) and an event (resources->events + i)",
        )
    ]


def test_what_free_leaves_in_a_mode_names_the_mode(tmp_path: Path) -> None:
    kept = f"if (resources) {{ if (ncclCuMemEnable()) {{ {DESTROY} }} free(resources); }}"
    audit = _audit(tmp_path, PROXYFREE=kept)
    (finding,) = audit.findings
    assert "In CUMEM=0, every way" in finding.explanation
    assert audit.halves[0].modes == ("CUMEM=0", "CUMEM=1")
    assert [cells for _, _, cells in audit.halves[0].resources][1:] == [("LEFT", "released")] * 2


def test_what_free_leaves_under_a_condition_of_its_own_is_a_warning_with_the_condition(tmp_path: Path) -> None:
    audit = _audit(tmp_path, PROXYFREE=f"if (resources) {{ if (odd(3)) {{ {DESTROY} }} free(resources); }}")
    (finding,) = audit.findings
    assert finding.severity is Severity.WARNING and finding.title.startswith(
        "testTransport send: Free may not release a stream"
    )
    assert "It does so if not odd(3)." in finding.explanation


def test_what_is_made_and_released_under_one_condition_is_clean(tmp_path: Path) -> None:
    made = "resources->made = odd(3); if (resources->made) NCCLCHECK(ncclCudaMalloc(&resources->buffer, 8));"
    free = f"if (resources) {{ {DESTROY} if (resources->made) ncclCudaFree(resources->buffer); free(resources); }}"
    assert _said(_audit(tmp_path, PROXYSETUP=made, PROXYFREE=free)) == []


def test_a_pointer_that_is_only_released_if_set_is_clean(tmp_path: Path) -> None:
    free = f"if (resources) {{ {DESTROY} if (resources->buffer) ncclCudaFree(resources->buffer); free(resources); }}"
    audit = _audit(tmp_path, PROXYSETUP="if (odd(1)) NCCLCHECK(ncclCudaMalloc(&resources->buffer, 8));", PROXYFREE=free)
    assert _said(audit) == []


def test_a_release_by_another_function_that_is_followed_is_clean(tmp_path: Path) -> None:
    helper = f"static void destroy(struct resources* resources) {{ {DESTROY} free(resources); }}\n"
    assert _said(_audit(tmp_path, helper, PROXYFREE="if (resources) destroy(resources);")) == []


def test_what_an_unknown_function_takes_is_not_called_left(tmp_path: Path) -> None:
    audit = _audit(
        tmp_path,
        PROXYFREE=f"{DESTROY} free(resources);",
        PROXYSETUP="ncclCudaMalloc(&resources->buffer, 8); helper(resources->buffer);",
    )
    assert _said(audit) == []
    assert any("helper" in note and "not followed" in note for note in audit.notes)
    assert ("?",) in {cells for _, _, cells in audit.halves[0].resources}


def test_what_something_beyond_the_connection_keeps_is_shared(tmp_path: Path) -> None:
    audit = _audit(tmp_path, "static void* pool;\n", PROXYSETUP="NCCLCHECK(ncclCudaMalloc(&pool, 8));")
    assert _said(audit) == []
    assert ("shared",) in {cells for _, _, cells in audit.halves[0].resources}


@pytest.mark.parametrize(
    ("body", "title"),
    [
        (
            "ncclCudaMalloc(&connection->transportResources, 8);",
            "proxyConnect takes device memory that proxySetup makes for a struct resources",
        ),
        (
            "struct other* mine; NCCLCHECK(ncclCalloc(&mine, 1)); connection->transportResources = mine; free(resources);",
            "proxyConnect takes the struct other that proxySetup makes for a struct resources",
        ),
    ],
)
def test_resources_of_another_type_are_an_error(tmp_path: Path, body: str, title: str) -> None:
    found = _said(_audit(tmp_path, PROXYSETUP=body))
    assert ("PSM525", "error", title) in found


def test_a_caller_that_follows_the_proxys_pointer_is_a_warning(tmp_path: Path) -> None:
    follows = "send->proxyConn.connection->transportResources = 0;"
    looks = "if (send->proxyConn.sameProcess) { void* p = send->proxyConn.connection->transportResources; (void)p; }"
    title = "sendConnect follows the pointer to the proxy's connection"
    assert ("PSM525", "warning", title) in _said(_audit(tmp_path, CALLER=follows))
    assert _said(_audit(tmp_path, CALLER=looks)) == []


@pytest.mark.parametrize(
    ("free", "title"),
    [
        (f"{DESTROY} cudaStreamDestroy(resources->stream); free(resources);", "proxyFree releases a stream that proxyConnect makes twice"),
        (f"{DESTROY} cudaIpcCloseMemHandle(resources->buffer); free(resources);", "proxyFree passes device memory that proxySetup makes to cudaIpcCloseMemHandle"),
    ],
)  # fmt: skip
def test_a_release_that_is_wrong_is_an_error(tmp_path: Path, free: str, title: str) -> None:
    audit = _audit(tmp_path, PROXYSETUP="NCCLCHECK(ncclCudaMalloc(&resources->buffer, 8));", PROXYFREE=free)
    assert ("PSM524", "error", title) in _said(audit)


def test_a_registration_of_another_size_is_an_error(tmp_path: Path) -> None:
    handler = """
static ncclResult_t proxyRegister(struct ncclProxyConnection* connection, struct ncclProxyState* state, void* reqBuff, int reqSize, void* respBuff,
    int respSize, int* done) { if (reqSize != sizeof(struct request)) return ncclInternalError; return ncclSuccess; }
ncclResult_t registers(struct ncclComm* comm, struct ncclProxyConnector* proxyConn) {
  struct %s info; void* handle;
  return ncclProxyCallBlocking(comm, proxyConn, ncclProxyMsgRegister, &info, sizeof(info), &handle, sizeof(void*));
}
"""
    assert _said(_audit(tmp_path, handler % "request", PROXYREGISTER="proxyRegister")) == []
    title = "registers sends Register with a request of 64 bytes, proxyRegister expects 8"
    assert _said(_audit(tmp_path, handler % "answer", PROXYREGISTER="proxyRegister")) == [("PSM523", "error", title)]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (
            'struct firstConnectInfo { int a; };\nstruct secondConnectInfo { int b; };\nstatic_assert(sizeof(firstConnectInfo) <= 256, "secondConnectInfo is too large");\n',
            "a static_assert that names secondConnectInfo checks firstConnectInfo",
        ),
        (
            'struct firstInfo { int a; };\nstatic_assert(sizeof(struct firstInfo) <= 256, "");\nstruct secondInfo { int b; };\nstatic_assert(sizeof(firstInfo) <= 256, "");\n',
            "the static_assert below struct secondInfo checks firstInfo, as line 66 does",
        ),
        ("enum kinds { A, B, C };\nint of(enum kinds k) { switch (k) { case A: return 1; case B: return 2; } return 0; }\n", "of: a switch over kinds has no case for C"),
    ],
)  # fmt: skip
def test_a_check_that_checks_something_else_is_a_warning(tmp_path: Path, text: str, title: str) -> None:
    (one,) = _said(_audit(tmp_path, text))
    assert one[:2] == ("PSM526", "warning") and one[2].rsplit(", as line", 1)[0] == title.rsplit(", as line", 1)[0]


def test_right_checks_are_clean(tmp_path: Path) -> None:
    text = (
        'struct firstInfo { int a; };\nstatic_assert(sizeof(struct firstInfo) <= 256, "firstInfo is too large");\n'
        'struct otherInfo { int a; };\nstatic_assert(sizeof(struct otherInfo) <= 256, "firstInfo_progress sees it");\n'
        "enum kinds { A, B, numKinds };\nint of(enum kinds k) { switch (k) { case A: return 1; case B: return 2; } return 0; }\n"
        "int or(enum kinds k);\nint either(enum kinds k) { switch (k) { case A: return 1; default: return 0; } }\n"
    ).replace("int or(enum kinds k);\n", "")
    assert _said(_audit(tmp_path, text.replace("numKinds", "kindsCount"))) == []


def test_a_mode_can_be_given(tmp_path: Path) -> None:
    free = f"if (resources) {{ if (ncclCuMemEnable()) {{ {DESTROY} }} free(resources); }}"
    assert _said(_audit(tmp_path, PROXYFREE=free, modes={"CUMEM": 1})) == []
    with pytest.raises(AuditError, match="no transport depends on PASS_SM"):
        _audit(tmp_path, PROXYFREE=free, modes={"PASS_SM": 1})


def test_a_suppression_takes_the_findings_of_a_function_and_keeps_the_reason(tmp_path: Path) -> None:
    rules = [Suppression("the driver does it", function="proxyFree"), Suppression("of old", function="nobody")]
    audit = _audit(tmp_path, PROXYFREE="free(resources);", suppress=rules)
    assert audit.findings == () and audit.suppressed[0][1] == "the driver does it"
    assert "the suppression of nobody matches nothing" in audit.notes


def test_code_that_is_not_followed_is_listed_and_not_called_right(tmp_path: Path) -> None:
    loops = "for (int i = 0; i < 1000; i++) helper(0);"
    audit = _audit(tmp_path, PROXYCONNECT=loops)
    assert any("a long loop in proxyConnect" in note for note in audit.notes)
    assert audit.halves[0].modes == ("not followed",)


def test_sources_without_a_transport_are_not_called_clean(tmp_path: Path) -> None:
    empty = tmp_path / "empty.cc"
    empty.write_text("int one;\n")
    with pytest.raises(AuditError, match="no transport to audit"):
        audit_contract([empty])
    with pytest.raises(InputError, match="not a source"):
        audit_contract([tmp_path / "lib.so"])
