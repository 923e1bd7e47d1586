"""What sources do with messages: copies into them, and copies out of them over own resources."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from psmkit.audit import Audit, AuditError, audit_structs
from psmkit.audit.structs import Suppression, suppressions
from psmkit.model import Severity
from psmkit.model.errors import InputError
from tests.audit.build import CUDA

HEAD = f"""
#include <stddef.h>
void *memcpy(void *, const void *, size_t);
void *calloc(size_t, size_t);
{CUDA}
struct local {{ cudaStream_t stream; cudaEvent_t events[8]; unsigned long step; char *buffer; }};
struct share {{ unsigned long id, size; }};
struct info {{ struct share share; struct local local; }};
struct ncclConnect {{ char data[256]; }};
struct connection {{ void *transportResources; }};
struct state;
"""
HANDLER = (
    "int {name}(struct connection *c, struct state *s, void *req, int reqSize, void *resp, int respSize, int *done)"
)
SETUP = HANDLER.format(name="setup")
CONNECT = HANDLER.format(name="proxyConnect")


def _audit(folder: Path, text: str, suppress: list[Suppression] | None = None) -> Audit:
    source = folder / "mine.c"
    source.write_text(HEAD + text)
    return audit_structs([source], suppress=suppress or ())


def _levels(audit: Audit) -> list[tuple[str, str]]:
    return [(one.code, one.severity.value) for one in audit.findings]


@pytest.mark.parametrize(
    "body",
    [
        "struct local *l = c->transportResources; memcpy(resp, l, sizeof *l);",
        "struct local *l; l = calloc(1, sizeof *l); memcpy(resp, l, sizeof(struct local));",
        "memcpy(resp, (char *)c->transportResources + 4, 8);",
        "struct info *i = resp; struct local *l = c->transportResources; i->local = *l;",
        "struct info *i = (struct info *)resp; struct local *l = c->transportResources; memcpy(&i->local.events, l->events, sizeof l->events);",
        "char *p = ((struct local *)c->transportResources)->buffer; memcpy(resp, &p, sizeof(void *));",
    ],
)
def test_a_copy_of_local_info_into_an_answer_is_a_warning(tmp_path: Path, body: str) -> None:
    audit = _audit(tmp_path, f"{SETUP} {{ {body} return 0; }}\n")
    assert ("PSM521", "warning") in _levels(audit)
    assert not any(one.severity is Severity.ERROR for one in audit.findings)


@pytest.mark.parametrize(
    "body",
    [
        "struct share mine = {1, 2}; memcpy(resp, &mine, sizeof mine);",
        "struct share *i = resp; struct local *l = c->transportResources; i->id = l->step;",
        "struct share want; memcpy(&want, req, sizeof want); struct local *l = c->transportResources; l->step = want.id;",
        "struct local *l = c->transportResources; memcpy(resp, &l->step, sizeof l->step);",
    ],
)
def test_code_that_sends_only_what_the_peer_needs_is_clean(tmp_path: Path, body: str) -> None:
    assert _levels(_audit(tmp_path, f"{SETUP} {{ {body} return 0; }}\n")) == []


def test_connect_info_over_own_resources_is_an_error(tmp_path: Path) -> None:
    audit = _audit(
        tmp_path,
        "struct connector { void *transportResources; };\n"
        "int connect(void *comm, struct ncclConnect *connectInfo, int nranks, int rank, struct connector *send) {\n"
        "  struct info *info = (struct info *)connectInfo;\n"
        "  struct local *mine = send->transportResources;\n"
        "  memcpy(mine, &info->local, sizeof *mine);\n  return 0;\n}\n",
    )
    error = audit.findings[0]
    assert (error.code, error.severity) == ("PSM522", Severity.ERROR)
    assert error.title == "connect writes a message over a stream, events and a pointer of struct local"
    assert error.evidence[0].line == HEAD.count("\n") + 5


def test_a_stream_out_of_connect_info_is_an_error(tmp_path: Path) -> None:
    audit = _audit(
        tmp_path,
        "void launch(cudaStream_t stream);\n"
        "int connect(void *comm, struct ncclConnect *connectInfo, int nranks, int rank, void *send) {\n"
        "  launch(((struct info *)connectInfo)->local.stream);\n  return 0;\n}\n",
    )
    assert [one.severity.value for one in audit.findings if one.code == "PSM522"] == ["error"]


def test_a_request_of_unknown_origin_is_only_a_warning(tmp_path: Path) -> None:
    """NCCL's SHM transport does so: the caller of its proxy is in the same process."""
    body = "struct local *l = c->transportResources; memcpy(l, req, sizeof *l);"
    audit = _audit(tmp_path, f"{CONNECT} {{ {body} return 0; }}\n")
    assert ("PSM522", "warning") in _levels(audit)
    assert "do not show whether the message comes from another process" in audit.findings[0].explanation


def test_a_request_into_new_memory_is_clean(tmp_path: Path) -> None:
    body = "struct local *l = calloc(1, sizeof *l); memcpy(l, req, sizeof *l); c->transportResources = l;"
    assert not [one for one in _levels(_audit(tmp_path, f"{CONNECT} {{ {body} return 0; }}\n")) if one[0] == "PSM522"]


def test_what_a_request_is_goes_to_the_functions_that_are_called(tmp_path: Path) -> None:
    audit = _audit(
        tmp_path,
        "static void give(void *to, const void *what) { memcpy(to, what, sizeof(struct local)); }\n"
        f"static {SETUP} {{ give(resp, c->transportResources); return 0; }}\n"
        "struct ops { const char *name; int (*setup)(struct connection *, struct state *, void *, int, void *, int, int *); };\n"
        'struct ops table[] = {{"leaky", setup}, {"empty", 0}};\n',
    )
    assert ("PSM521", "warning") in _levels(audit)
    assert audit.entries == (("leaky (mine.c)", (0,)),)


def test_a_type_that_a_message_is_taken_for_is_looked_at(tmp_path: Path) -> None:
    audit = _audit(tmp_path, f"{SETUP} {{ struct info *i = (struct info *)resp; i->share.id = 1; return 0; }}\n")
    assert [one.title for one in audit.findings] == [
        "struct info leaves the process with a stream, events and a pointer"
    ]
    assert "setup at mine.c" in audit.findings[0].explanation


def test_a_missing_header_is_one_line(tmp_path: Path) -> None:
    source = tmp_path / "mine.c"
    source.write_text('#include "absent.h"\n')
    with pytest.raises(AuditError) as caught:
        audit_structs([source])
    assert "absent.h" in str(caught.value) and "--cflags" in str(caught.value) and "\n" not in str(caught.value)


def test_code_that_is_not_understood_is_said(tmp_path: Path) -> None:
    audit = _audit(tmp_path, "struct p2pConnectInfo { int rank; };\nint broken(void) { return undeclared; }\n")
    assert any("was not looked at" in note and "undeclared" in note for note in audit.notes)


def test_flags_come_from_a_compile_commands_json(tmp_path: Path) -> None:
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "mine.h").write_text("struct held { void *p; };\n")
    source = tmp_path / "mine.c"
    source.write_text(f'#include "mine.h"\n{HEAD}{SETUP} {{ NAME *h = resp; h->p = 0; return 0; }}\n')
    command = {
        "directory": str(tmp_path),
        "file": "mine.c",
        "command": "cc -Iinc '-DNAME=struct held' -O2 -c mine.c -o x.o",
    }
    (tmp_path / "compile_commands.json").write_text(json.dumps([command]))
    audit = audit_structs([source], commands=tmp_path)
    assert [one.title for one in audit.findings] == ["struct held leaves the process with a pointer"]


# ---- suppressions ----


def test_a_suppression_takes_its_field_and_keeps_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text(
        '[[suppress]]\nstruct = "info"\nmember = "local.buffer"\nreason = "it is compared only"\n'
        '[[suppress]]\nstruct = "gone"\nreason = "was removed"\n'
    )
    text = f"{SETUP} {{ struct info *i = (struct info *)resp; i->share.id = 1; return 0; }}\n"
    audit = _audit(tmp_path, text, suppressions(file))
    assert [one.title for one in audit.findings] == ["struct info leaves the process with a stream and events"]
    assert [reason for _, reason in audit.suppressed] == ["it is compared only"]
    assert any("gone matches nothing" in note for note in audit.notes)


def test_a_suppression_of_a_function_takes_its_copies(tmp_path: Path) -> None:
    text = f"{SETUP} {{ struct local *l = c->transportResources; memcpy(resp, l, sizeof *l); return 0; }}\n"
    audit = _audit(tmp_path, text, [Suppression("one process", function="setup")])
    assert audit.findings == () and len(audit.suppressed) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[suppress]]\nstruct = "a"\n', "reason"),
        ('[[suppress]]\nstruct = "a"\nreason = " "\n', "no reason"),
        ('[[suppress]]\nreason = "why"\n', "neither"),
        ("[[suppress]\n", "no file of suppressions"),
        ('[[suppress]]\nstruct = "a"\nreason = "b"\nwho = "c"\n', "who"),
        ("suppress = 1\n", "no file of suppressions"),
    ],
)
def test_a_file_of_suppressions_is_checked(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "known.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=said):
        suppressions(file)


def test_types_that_are_known_are_found_without_code(tmp_path: Path) -> None:
    text = (
        "struct p2pConnectInfo { int rank; void *p; };\nstruct mine { cudaStream_t s; };\n"
        "struct marked { cudaEvent_t e; };\ntypedef struct marked psm_shareable_marked;\n"
    )
    source = tmp_path / "mine.c"
    source.write_text(HEAD + text)
    audit = audit_structs([source], ["mine"])
    assert {one.plain: one.basis for one in audit.structs} == {
        "p2pConnectInfo": "its name",
        "mine": "--wire",
        "marked": "PSM_SHAREABLE",
    }
    assert len(audit.findings) == 3
    with pytest.raises(AuditError, match="it has no type other"):
        audit_structs([source], ["other"])


def test_sources_without_a_message_are_not_called_clean(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="no code that handles messages"):
        _audit(tmp_path, "int one(void) { return 1; }\n")
