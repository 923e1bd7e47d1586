"""What psmkit/plugins/abi.json lacks is named before anything is built: the entry, what is missing, and what to write."""

from __future__ import annotations

import copy
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from psmkit.plugins.abi import tables
from tests.abi.layouts import FACTS

Facts = dict[str, Any]
FOLDER = FACTS.parents[2] / "csrc" / "abi"
WHOLE: Facts = json.loads(FACTS.read_text("utf-8"))
# The types that are the newest version's descriptors and arguments, and the version that brought its descriptors.
DESCRIPTOR, ARGUMENTS = (
    max(
        (name for name in WHOLE["structs"] if name.startswith(f"ncclProfiler{what}_v")),
        key=lambda name: int(name.split("_v")[1][:-2]),
    )
    for what in ("EventDescr", "EventStateArgs")
)
NEW = next(table for table in tables() if f"_v{table.version}_t" in DESCRIPTOR and table.kind == "profiler")
BITS, STATES = "(unnamed) profiler event type bits", "ncclProfilerEventState_t"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module("generate")
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def problems(generate: ModuleType) -> Callable[[Facts], list[str]]:
    found: Callable[[Facts], list[str]] = generate.problems
    return found


def made_up(facts: Facts) -> Facts:
    """A kind below KernelCh, and a state of it."""
    for enum, name, value in ((BITS, "ncclProfileLap", 1 << 20), (STATES, "ncclProfilerLapStop", 40)):
        facts["enums"][enum].append([NEW.first, None, {**facts["enums"][enum][-1][2], name: value}])
    descriptor = facts["structs"][DESCRIPTOR]["members"]
    (union,) = (at for at, row in enumerate(descriptor) if row[3] == "union")
    offset = descriptor[union][1]
    descriptor[union + 1 : union + 1] = [
        ["lap", offset, 8, "struct", "struct"],
        ["lap.laps", offset, 8, "uint64_t", "long unsigned int"],
    ]
    arguments = facts["structs"][ARGUMENTS]["members"]
    arguments += [["lap", 0, 8, "struct", "struct"], ["lap.nanos", 0, 8, "uint64_t", "long unsigned int"]]
    facts["profiler_fields"]["laps"] = facts["profiler_args"]["nanos"] = {"type": "u64"}
    for above in ("Group", "Coll", "P2p", "KernelCh", "CollApi", "P2pApi", "GroupApi"):
        facts["profiler_kinds"][above]["asked"].append("Lap")
    facts["profiler_kinds"]["Lap"] = {
        "member": "lap",
        "asked": [],
        "parents": {"5": ["KernelCh"]},
        "fields": {"laps": "laps"},
        "args": {"lap.nanos": "nanos"},
        "keeps": {"laps": "laps", "nanos": "args.nanos", "stop_ns": "LapStop"},
        "about": "laps",
    }
    facts["profiler_states"]["LapStop"] = {"kind": "Lap", "place": 1}
    return facts


def lap(facts: Facts) -> Facts:
    kind: Facts = facts["profiler_kinds"]["Lap"]
    return kind


def lap_is(facts: Facts, kind: str) -> None:
    """The made-up member has this type."""
    (row,) = (row for row in facts["structs"][DESCRIPTOR]["members"] if row[0] == "lap.laps")
    row[3:5] = [kind, kind]


WRONG: tuple[tuple[Callable[[Facts], Any], str], ...] = (
    (lambda f: f["structs"]["ncclProfiler_v7_t"].update(source="?"), 'structs.ncclProfiler_v7_t.source: "?" is left; write repository, file and commit'),
    (lambda f: lap(f).update(about="?"), 'profiler_kinds.Lap.about: "?" is left'),
    (lambda f: lap(f).pop("asked"), 'profiler_kinds.Lap: no "asked"; write the kinds whose bits make NCCL start this one'),
    (lambda f: lap(f).pop("parents"), 'profiler_kinds.Lap: no "parents"; write from which version on'),
    (lambda f: lap(f).update(parents=["KernelCh"]), "profiler_kinds.Lap.parents: ['KernelCh'] is not of its form; write an object"),
    (lambda f: lap(f).update(parents={"200": ["KernelCh"]}), "profiler_kinds.Lap.parents.200: write the number of a version"),
    (lambda f: lap(f).pop("fields"), 'profiler_kinds.Lap: no "fields"; write for each member of its descriptor'),
    (lambda f: lap(f).pop("keeps"), 'profiler_kinds.Lap: no "keeps"; write which member of its row'),
    (lambda f: lap(f).pop("about"), 'profiler_kinds.Lap: no "about"; write what a row'),
    (lambda f: lap(f).pop("args"), "no args has lap.nanos of ncclProfilerEventStateArgs_v"),
    (lambda f: lap(f)["args"].update({"lap.nano": "nanos"}), "Lap.args: no version has lap.nano in its"),
    (lambda f: lap(f)["args"].update({"lap.nanos": "ns"}), "Lap.args: ns is no field of profiler_args; write its type there"),
    (lambda f: lap(f)["fields"].clear(), f"Lap.fields: no laps, which {DESCRIPTOR} has; write"),
    (lambda f: lap(f)["fields"].update(lapse="laps"), "Lap.fields: no version has lap.lapse; correct the name"),
    (lambda f: lap(f)["fields"].update(laps="rounds"), "Lap.fields: rounds is no field of profiler_fields; write its type"),
    (lambda f: lap(f)["keeps"].update(laps="rounds"), "Lap.keeps.laps: rounds is no field, argument or state of Lap; write one of LapStop, args.nanos, laps"),
    (lambda f: lap(f)["keeps"].update(laps=None), "Lap.keeps.laps: None is no field"),
    (lambda f: lap(f)["keeps"].update({"2": "laps"}), "Lap.keeps.2: not a name in C"),
    (lambda f: lap(f)["parents"].update({"5": ["Kernel"]}), "profiler_kinds.Lap: Kernel is no kind"),
    (lambda f: f["profiler_kinds"]["KernelCh"]["asked"].remove("Lap"), 'KernelCh.asked: no Lap, which is below it: NCCL starts a kind for those below it; write "Lap" there'),
    (lambda f: lap(f).update(member="lapp"), f'{DESCRIPTOR} has lap, which is of no kind; write "member": "lap"'),
    (lambda f: f["profiler_kinds"].pop("Lap"), "profiler_kinds: no Lap, which NCCL has a bit for; write its entry"),
    (lambda f: f["profiler_kinds"].update(Round={}), "profiler_kinds.Round: no bit; write a row with ncclProfileRound"),
    (lambda f: f["profiler_states"].pop("LapStop"), "profiler_states: no LapStop, which ncclProfilerEventState_t has"),
    (lambda f: f["profiler_states"].update(LapEnd={"kind": "Lap"}), "profiler_states.LapEnd: no number; write a row with ncclProfilerLapEnd"),
    (lambda f: f["profiler_states"]["LapStop"].pop("kind"), "profiler_states.LapStop: no kind is no kind; write one of"),
    (lambda f: f["profiler_fields"]["laps"].update(type="uint64_t"), "profiler_fields.laps: type uint64_t is unknown; write one of int, i64, u64"),
    (lambda f: f["profiler_args"]["nanos"].pop("type"), "profiler_args.nanos: no type; write one of int, i64, u64, hex, byte, flag, pointer"),
    (lambda f: f["tables"]["profiler"]["7"].pop("symbol"), "tables.profiler.7: no symbol; write it as in the version before"),
    (lambda f: f["tables"]["profiler"]["7"].update(releases=[None, None]), "tables.profiler.7: releases has no meaning; write symbol, struct, coming only"),
    (lambda f: f["tables"]["profiler"]["7"].update(symbol="ncclProfiler_v6"), "tables.profiler.7: ncclProfiler_v6 is of another version"),
    (lambda f: f["lookups"]["2.32.3"].append("?"), 'lookups.2.32.3: "?" is left; the row is a guess: correct it'),
    (lambda f: f["lookups"]["2.32.3"].append("ncclProfiler_v70"), "lookups.2.32.3: ncclProfiler_v70 is no symbol of tables; correct the name"),
    (lambda f: f["lookups"].update(newest=[]), "lookups.newest: not a release; write a number such as"),
    (lambda f: f["lookups"]["2.31.2"].remove("ncclProfiler_v6"), "lookups.2.31.2: no ncclProfiler_v6, which 2.29.2 and "),
    (lambda f: f["structs"]["ncclProfiler_v7_t"].update(headers=["2.99.1", "2.99.1"]), "structs.ncclProfiler_v7_t.headers: lookups has no 2.99.1; write there"),
    (lambda f: f["tables"]["tuner"]["6"].update(coming=True), 'tables.tuner.6: "coming", but lookups.2.30.3 has ncclTunerPlugin_v6; take one of them out'),
    (lambda f: f["tables"]["tuner"].update({"99": {"symbol": "ncclTunerPlugin_v99", "struct": "ncclTuner_v7_t"}}), 'tables.tuner.99: no release of lookups has ncclTunerPlugin_v99; write it there, or "coming": true here'),
    (lambda f: f["optional"]["net"].update(isends=""), "optional.net.isends: no net table has it; write one of name, init"),
    (lambda f: f["meanings"]["net"].update(isends=[5]), "meanings.net.isends: no net table has it; write one of name, init"),
    (lambda f: f["enums"][BITS][-1][2].update(ncclProfileLap=1), f'enums, "{BITS}": ncclProfileGroup and ncclProfileLap are both 1; write the number'),
    (lambda f: f["enums"][STATES][-1][2].update(ncclProfilerLapStop=0), "are both 0; write the number that NCCL has for each"),
    (lambda f: f["enums"][BITS][0][2].update(ncclProfileLap=1 << 20), f"ncclProfileLap is there from v1 on, and lap in the descriptor from v{NEW.version} on; write a new row"),
    (lambda f: lap(f).update(with_childs=True), "profiler_kinds.Lap.with_childs: the key has no meaning; write one of member, asked"),
    (lambda f: lap(f).update(default="false"), "profiler_kinds.Lap.default: 'false' is not of its form; write true or false"),
    (lambda f: f["profiler_states"]["LapStop"].update(place="1"), "profiler_states.LapStop.place: '1' is not of its form; write a number, without quotation marks"),
    (lambda f: f["profiler_states"]["LapStop"].update(places=1), "profiler_states.LapStop.places: the key has no meaning; write one of kind, place"),
    (lambda f: f["enums"][BITS][-1].__setitem__(0, "2.99.1"), "no version of a profiler knows ncclProfileLap; write a row"),
    (lambda f: f.update(profiler_fields={**f["profiler_fields"], "laps": {"type": "word"}}), f"Lap.fields.laps: laps has the type word, and lap.laps of {DESCRIPTOR} is uint64_t of 8 bytes; write a field of a number's type"),
    (lambda f: f.update(profiler_fields={**f["profiler_fields"], "laps": {"type": "int"}}), f"Lap.fields.laps: laps has the type int, and lap.laps of {DESCRIPTOR} is uint64_t of 8 bytes; write a field with room"),
    (lambda f: lap_is(f, "const char *"), "is const char * of 8 bytes; write a field of the type word or pointer"),
    (lambda f: lap_is(f, "void *"), "is void * of 8 bytes; write a field of the type pointer"),
    (lambda f: f["profiler_args"]["nanos"].update(type="int"), f"Lap.args.lap.nanos: nanos has the type int, and lap.nanos of {ARGUMENTS} is uint64_t of 8 bytes; write a field with room"),
    (lambda f: f["tables"]["profiler"]["7"].update(struct="ncclProfiler_v70_t"), "tables.profiler.7: ncclProfiler_v70_t is no type of structs; measure it"),
    (lambda f: f["structs"]["ncclProfiler_v7_t"]["members"][2].__setitem__(3, "ncclResult_t (*)(void *, void **, ncclProfilerDescr_v7_t *)"), "structs.ncclProfiler_v7_t.startEvent: ncclProfilerDescr_v7_t is no type of structs or typedefs"),
)  # fmt: skip


def test_the_facts_are_whole(problems: Callable[[Facts], list[str]]) -> None:
    assert problems(WHOLE) == []
    assert problems(made_up(copy.deepcopy(WHOLE))) == []


@pytest.mark.parametrize(("change", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_is_missing_is_named(
    problems: Callable[[Facts], list[str]], change: Callable[[Facts], object], said: str
) -> None:
    facts = made_up(copy.deepcopy(WHOLE))
    change(facts)
    found = problems(facts)
    assert any(said in line for line in found), found


def test_the_build_stops_at_a_question_mark_and_names_all_of_them(tmp_path: Path, generate: ModuleType) -> None:
    facts = copy.deepcopy(WHOLE)
    facts["structs"]["ncclNet_v12_t"].update(source="?", note="?")
    sheet = tmp_path / "abi.json"
    sheet.write_text(json.dumps(facts), "utf-8")
    with pytest.raises(SystemExit) as stopped:
        generate.main(["versions", str(sheet), str(tmp_path)])
    assert not list(tmp_path.glob("*.h"))
    assert sorted(line.partition(";")[0] for line in str(stopped.value.code).splitlines()) == [
        f'{sheet}: structs.ncclNet_v12_t.note: "?" is left',
        f'{sheet}: structs.ncclNet_v12_t.source: "?" is left',
    ]


def test_a_part_that_is_missing_is_no_traceback(tmp_path: Path, generate: ModuleType) -> None:
    sheet = tmp_path / "abi.json"
    for part in WHOLE:
        sheet.write_text(json.dumps({name: value for name, value in WHOLE.items() if name != part}), "utf-8")
        try:
            generate.main(["versions", str(sheet), str(tmp_path)])
        except SystemExit as error:
            assert str(error.code).startswith(str(sheet)) and part in str(error.code), error.code
