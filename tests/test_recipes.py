"""The recipes of CONTRIBUTING.md work in a copy of the tree, with the files that they name and no others."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


class Tree:
    """A copy of the sources and of what `make setup` built, and what has changed in it; ``settings`` are variables of what runs in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        unwanted = shutil.ignore_patterns("__pycache__")
        for folder in ("psmkit", "docs", "scripts", "csrc"):
            shutil.copytree(ROOT / folder, root / folder, ignore=unwanted)
        # Links from docs/, what the generators read beside the package, and the build.
        for name in ("benchmarks", "examples", "CMakeLists.txt"):
            (root / name).symlink_to(ROOT / name)
        self.before = self.contents()
        self.settings: dict[str, str] = {}

    def contents(self) -> dict[str, bytes]:
        files = [path for path in self.root.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        return {str(path.relative_to(self.root)): path.read_bytes() for path in files}

    def changed(self) -> set[str]:
        after = self.contents()
        return {name for name in {*self.before, *after} if self.before.get(name) != after.get(name)}

    def run(self, *arguments: str, status: int = 0) -> str:
        # Without -S the hook of the editable installation finds psmkit in the tree itself.
        packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        done = subprocess.run(
            [sys.executable, "-S", *arguments],
            cwd=self.root,
            env={**os.environ, **self.settings, "PYTHONPATH": os.pathsep.join([str(self.root), *packages])},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    def build(self, folder: Path) -> None:
        """Build libpsm and the rank program outside the tree, and use them."""
        configure = ["cmake", "-S", str(self.root), "-B", str(folder), "-DPSMKIT_PYTHON=OFF", "-DPSMKIT_INPLACE=OFF"]
        configure += ["-DCMAKE_BUILD_TYPE=Debug", f"-DPython_EXECUTABLE={sys.executable}"]
        for command in (configure, ["cmake", "--build", str(folder), "--parallel", "2", "--target", "psm_rank"]):
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stdout + done.stderr
        self.settings |= {
            "PSM_DIR": str(folder / "csrc/psm/tree"),
            "PSM_HOSTCUDA_DIR": str(self.root / "psmkit/lab/hostcuda"),
        }

    def compiler(self, made: Path, *rooms: str) -> list[str]:
        """The command that checks a source against the headers that the build makes of the facts; ``rooms`` of csrc."""
        (made / "psm_abi").mkdir(parents=True)
        templates = [str(path) for path in sorted((self.root / "csrc/abi/psm_abi").glob("*.h.in"))]
        facts = str(self.root / "psmkit/plugins/abi.json")
        self.run("csrc/abi/generate.py", "headers", facts, str(made / "psm_abi"), *templates)
        self.run("csrc/abi/generate.py", "versions", facts, str(made))
        folders = [made, *(self.root / "csrc" / name for name in rooms)]
        folders += {path.parent for path in (ROOT / "build").rglob("psm*messages.h")}
        return ["gcc", "-std=gnu11", "-fsyntax-only", *(f"-I{folder}" for folder in folders)]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "tree")


def test_a_log_message_is_an_entry_of_one_file(tree: Tree) -> None:
    text = "recipe test : rank 3 lost 17 bytes"
    with (tree.root / "psmkit/catalogue/misc.toml").open("a", encoding="utf-8") as file:
        file.write(
            "\n[[message]]\n"
            'name = "misc.recipe"\n'
            'pattern = "recipe test : rank {rank:int} lost {bytes:uint} bytes"\n'
            'level = "INFO"\n'
            'meaning = "A message of a test."\n'
            f'sample = [{{text = "{text}", kind = "constructed", fields = {{rank = 3, bytes = 17}}}}]\n'
        )
    shown = tree.run("-m", "psmkit", "explain", f"node0:1:1 [0] NCCL INFO {text}")
    assert "misc.recipe" in shown and "A message of a test." in shown
    tree.run("scripts/docs.py")
    assert tree.changed() == {"psmkit/catalogue/misc.toml", "docs/catalogue.md"}


def test_a_command_is_a_module(tree: Tree) -> None:
    (tree.root / "psmkit/cli/recipe.py").write_text(
        '"""``psmkit recipe``: Greet the reader."""\n\n'
        "import click\n\n\n"
        '@click.command("recipe")\n'
        "def command() -> None:\n"
        '    """Greet the reader."""\n'
        '    click.echo("hello")\n',
        "utf-8",
    )
    assert tree.run("-m", "psmkit", "recipe") == "hello\n"
    assert re.search(r"^  recipe +Greet the reader\.$", tree.run("-m", "psmkit", "--help"), re.MULTILINE)
    tree.run("scripts/docs.py")
    assert tree.changed() == {"psmkit/cli/recipe.py", "docs/operator.md"}


def test_a_finding_is_an_entry_of_its_family_and_a_module(tree: Tree) -> None:
    codes = tree.root / "psmkit/model/codes/surroundings.py"
    entry = (
        '    Code(\n        code="PSM699",\n        title="recipe",\n'
        "        effect=Effect.FAILS,\n"
        '        meaning="A finding of a test.",\n        next_step="Nothing.",\n    ),\n'
    )
    head, start, rest = codes.read_text("utf-8").partition("TABLE = (\n")
    codes.write_text(head + start + entry + rest, "utf-8")
    (tree.root / "psmkit/analysis/rules/recipe.py").write_text(
        '"""A rule of a test."""\n\n'
        "from psmkit.analysis.facts.job import Job\n"
        "from psmkit.analysis.inference.findings import new_finding\n"
        "from psmkit.analysis.registry import rule\n"
        "from psmkit.model import Finding\n\n\n"
        "@rule(order=9999)\n"
        "def find(job: Job) -> list[Finding]:\n"
        '    return [new_finding(job, "PSM699", run=0, procs=[0])]\n',
        "utf-8",
    )
    log = ROOT / "tests/data/logs/passsm-8gpu.log"
    report = json.loads(tree.run("-m", "psmkit", "analyze", str(log), "--format", "json", "--fail-on", "never"))
    assert report["verdict"] == "failed" and "PSM699" in {found["code"] for found in report["findings"]}
    assert "A finding of a test." in tree.run("-m", "psmkit", "explain", "PSM699")
    tree.run("scripts/docs.py")
    assert tree.changed() == {
        "psmkit/model/codes/surroundings.py",
        "psmkit/analysis/rules/recipe.py",
        "docs/findings.md",
    }


def test_a_version_of_a_table_is_measured_from_a_header(tree: Tree, tmp_path: Path) -> None:
    """Up to the compiler: the types, the table, the macros, the checker and the page come from what was measured."""
    (tree.root / "tests").symlink_to(ROOT / "tests")
    header = tmp_path / "net_v90.h"
    slots = (tree.root / "psmkit/psm/include/psm_abi/net.h").read_text("utf-8").partition("} ncclNet_v12_t;")[0]
    slots = slots[slots.rindex("typedef struct {") :].replace("_v12_t", "_v90_t")
    older = sorted(set(re.findall(r"ncclNet\w+_v90_t", slots)))
    header.write_text(
        '#include "psm_abi/net.h"\n'
        + "".join(f"typedef {name.replace('_v90_t', '_v12_t')} {name};\n" for name in older)
        + f"{slots}    ncclResult_t (*queryHealth)(void *ctx, int dev, int *healthy);\n}} ncclNet_v90_t;\n",
        "utf-8",
    )
    include = f"-I{tree.root}/psmkit/psm/include"
    added = tree.run("-m", "tests.abi.layouts", "2.99.1", str(header), include).split()
    assert added == [*[name for name in added if name in older], "ncclNet_v90_t"] and len(added) == 1 + len(older)

    sheet = tree.root / "psmkit/plugins/abi.json"
    facts = json.loads(sheet.read_text("utf-8"))
    assert facts["tables"]["net"]["90"]["symbol"] == "ncclNetPlugin_v90"
    assert facts["typedefs"]["ncclNetAttr_v90_t"] == [["2.99.1", "2.99.1", "ncclNetAttr_v12_t"]]
    slot = facts["structs"]["ncclNet_v90_t"]["members"]
    assert [row[0] for row in slot if len(row) > 5] == ["queryHealth"], "other parameters are those of v12"
    assert slot[-1][5] == {"parameters": ["ctx", "dev", "healthy"]}
    facts["structs"]["ncclNet_v90_t"].update(source="a test", note="A version of a test.")
    facts["optional"]["net"]["queryHealth"] = ""
    assert facts["lookups"]["2.99.1"].count("ncclNetPlugin_v90") == facts["lookups"]["2.99.1"].count("?") == 1
    facts["lookups"]["2.99.1"].remove("?")
    sheet.write_text(json.dumps(facts), "utf-8")

    # What the build makes of it: headers, and a plugin that speaks all versions but has no word for the new slot.
    unit = tree.root / "csrc/plugins/net/tables.c"
    compiling = tree.compiler(tmp_path / "made", "plugins/net", "plugins/say", "base")
    done = subprocess.run([*compiling, str(unit)], capture_output=True, text=True, timeout=60)
    assert set(re.findall(r"error: .(\w+). undeclared", done.stderr)) == {"queryHealth_v90"}, done.stderr
    unit.write_text(f"#define queryHealth_v90 NULL\n{unit.read_text('utf-8')}", "utf-8")
    for own in (unit, tree.root / "csrc/plugins/drive/table.c", tree.root / "csrc/plugins/net/chain/table.c"):
        done = subprocess.run([*compiling, str(own)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    tree.run("scripts/docs.py")
    written = {"psmkit/plugins/abi.json", "csrc/plugins/net/tables.c"}
    # The profiler's page has the newest release.
    assert tree.changed() == {*written, "docs/plugins.md", "docs/profiler.md"}


# A version with a kind of event, a state with an argument, and a field that no other version has.
LAP = "    union {\n        struct {\n            uint64_t laps;\n            const char *track;\n        } lap;\n"
LAP_FACTS = {
    "profiler_kinds": {
        "Lap": {
            "member": "lap",
            "asked": [],
            "parents": {"5": ["KernelCh"]},
            "fields": {"laps": "laps", "track": "track"},
            "args": {"lap.seconds": "seconds"},
            "keeps": {"track": "track", "laps": "laps", "seconds": "args.seconds", "stop_ns": "LapStop"},
            "about": "laps, track, seconds",
        }
    },
    "profiler_states": {"LapStop": {"kind": "Lap", "place": 1}},
    "profiler_fields": {"laps": {"type": "u64"}, "track": {"type": "word"}},
    "profiler_args": {"seconds": {"type": "u64"}},
}
LAP_PROGRAM = r"""
#include <stdio.h>
#include "stream.h"
int main(void)
{
    ncclProfilerEventDescr_v90_t nccls = {.type = ncclProfileLap, .rank = 3, .lap = {17, "north"}};
    ncclProfilerEventStateArgs_v90_t seconds = {.lap = {80}};
    struct stream_line line = {.what = STREAM_START, .comm = 1, .id = 5};
    event_words words;
    union event_record written;
    char text[STREAM_LINE];
    event_read(90, &nccls, &line.e);
    stream_put(&line, text, sizeof text);
    fputs(text, stdout);
    if (stream_get(text, &line)) return 1;
    event_write(90, &line.e, &written, words);
    printf("%lu %s %d\n", written.v90.lap.laps, written.v90.lap.track, event_kind(ncclProfileLap));
    line.what = STREAM_STATE;
    line.state = ncclProfilerLapStop;
    event_args_read(90, line.state, &seconds, &line.args);
    stream_put(&line, text, sizeof text);
    fputs(text, stdout);
    return event_has_state(90, event_kind(ncclProfileLap), ncclProfilerLapStop) ? 0 : 1;
}
"""


def complete_lap(sheet: Path) -> None:
    """The facts of the version that are not measured."""
    facts = json.loads(sheet.read_text("utf-8"))
    for name in ("EventDescr", "EventStateArgs", ""):
        facts["structs"][f"ncclProfiler{name}_v90_t"].update(source="a test", note="A version of a test.")
    facts["lookups"]["2.99.1"].remove("?")
    bits, states = "(unnamed) profiler event type bits", "ncclProfilerEventState_t"
    for enum, value, number in ((bits, "ncclProfileLap", 1 << 16), (states, "ncclProfilerLapStop", 32)):
        facts["enums"][enum].append(["2.99.1", "2.99.1", {**facts["enums"][enum][-1][2], value: number}])
    for part, entries in LAP_FACTS.items():
        facts[part].update(entries)
    for above in ("Group", "Coll", "P2p", "KernelCh", "CollApi", "P2pApi", "GroupApi"):
        facts["profiler_kinds"][above]["asked"].append("Lap")
    sheet.write_text(json.dumps(facts), "utf-8")


def measure_lap(tree: Tree, header: Path) -> None:
    """The header of the version, and its types in the facts."""
    (tree.root / "tests").symlink_to(ROOT / "tests")
    known = (tree.root / "psmkit/psm/include/psm_abi/profiler.h").read_text("utf-8")
    types = known.partition("typedef ncclProfilerEventState_t ncclProfilerEventState_v7_t;\n")[2]
    types = types.partition("} ncclProfiler_v7_t;\n")[0] + "} ncclProfiler_v7_t;\n"
    types = types.replace("    union {\n", LAP, 1).replace(
        "typedef union {\n", "typedef union {\n    struct {\n        uint64_t seconds;\n    } lap;\n"
    )
    header.write_text(
        '#include "psm_abi/profiler.h"\ntypedef ncclProfilerEventState_t ncclProfilerEventState_v90_t;\n'
        + types.replace("_v7_t", "_v90_t"),
        "utf-8",
    )
    tree.run("-m", "tests.abi.layouts", "2.99.1", str(header), f"-I{tree.root}/psmkit/psm/include")


# Runs in the tree: a row of the new kind, as telemetry reads it, and its span.
LAP_ROWS = """
import sys
from pathlib import Path
import numpy as np
from opentelemetry.sdk.resources import Resource
from psmkit.telemetry.layout import OWN, ROW
from psmkit.telemetry.spans import build
from tests.csrc.plugins.profiler.rows import read
from tests.telemetry.takes import made
found = [row for row in read(Path(sys.argv[1])) if row.kind == "lap"]
values = {tuple(np.frombuffer(one.raw, OWN[16])[0].tolist())[:3] for one in found}
times = [(one.start_ns, int(np.frombuffer(one.raw, OWN[16])[0]["stop_ns"]), one.stop_ns) for one in found]
print(len(found) > 0, values, all(a <= b <= c for a, b, c in times), {one.state for one in found})
take = made()
take.spans = np.zeros(1, ROW)
take.spans["comm"] = int(take.comms["id"][0])
take.spans["event"]["type"] = 16
take.spans["event"]["stop_ns"] = take.spans["start_ns"] = 5
take.spans["event"]["u"][0] = np.frombuffer(found[0].raw, "u1")
(span,) = build(take, Resource({}), 10).spans
print(span.name, {k: v for k, v in span.attributes.items() if k.startswith("nccl.lap")}, [e.name for e in span.events])
"""


class Linker:
    """Links programs of a tree's sources, against the headers that the build makes of its facts."""

    def __init__(self, tree: Tree, folder: Path) -> None:
        rooms = ("plugins", "plugins/say", "plugins/profiler", "plugins/profiler_check", "telemetry", "base", "psm/shm")
        self.command = [word for word in tree.compiler(folder / "made", *rooms) if word != "-fsyntax-only"]
        self.folder = folder

    def link(self, name: str, sources: list[Path], *more: str) -> Path:
        command = [*self.command, *map(str, sources), "-o", str(self.folder / name), *more, "-lpthread", "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return self.folder / name


def test_a_version_of_a_profiler_is_facts_alone(tree: Tree, tmp_path: Path) -> None:
    """Checker, driver, recorded streams, telemetry and pages follow the facts, and so does what the plugin records."""
    measure_lap(tree, tmp_path / "profiler_v90.h")
    complete_lap(tree.root / "psmkit/plugins/abi.json")
    linker = Linker(tree, tmp_path)
    plugins = tree.root / "csrc/plugins"
    checker = plugins / "profiler_check"
    (tmp_path / "lap.c").write_text(LAP_PROGRAM, "utf-8")
    program = linker.link(
        "lap", [tmp_path / "lap.c", *(checker / f"{name}.c" for name in ("event", "stream", "rules"))]
    )
    done = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        ["start 0 1 5 Lap rank=3 laps=17 track=north", "17 north 16", "state 0 5 32 seconds=80"],
    )
    assert tree.run("-c", "from psmkit.telemetry.masks import mask_of; print(mask_of('lap'))") == f"{1 << 16}\n"

    # NCCL's part plays the kind, the checker finds nothing wrong with it, and the plugin records it.
    contract = [checker / f"{name}.c" for name in ("contract", "event", "known", "rules", "stream")]
    drive = linker.link("drive", [*(plugins / "drive/profiler").glob("*.c"), *contract], "-rdynamic")
    own = [*(plugins / "profiler").glob("*.c"), *(tree.root / "csrc/base").glob("*.c"), plugins / "say/plugin_say.c"]
    plugin = linker.link("libnccl-profiler-psm.so", own, "-shared", "-fPIC")
    records = tmp_path / "records"
    settings = {"PSM_RECORD_DIR": str(records), "PSM_RECORD_KEEP": "1", "PSM_PROFILER_EVENTS": "all"}
    done = subprocess.run(
        [drive, plugin, "90", "collective"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **settings},
    )
    assert json.loads(done.stdout)["outcome"] == "passed", done.stdout + done.stderr
    (written,) = records.glob("*.rec")
    # The name is the first of the communicator's own; the drive passes 1 for each number.
    assert tree.run("-c", LAP_ROWS, str(written)).splitlines() == [
        "True {(128, 1, 1)} True {32}",
        "lap {'nccl.lap.track': 'custom0', 'nccl.lap.laps': 1, 'nccl.lap.seconds': 1} ['stop']",
    ]

    tree.run("scripts/docs.py")
    assert tree.changed() == {"psmkit/plugins/abi.json", "docs/plugins.md", "docs/profiler.md"}
    assert "| `lap` | 0x10000 | v90 | lap | laps, track, seconds |" in (tree.root / "docs/profiler.md").read_text(
        "utf-8"
    )


@pytest.mark.slow
def test_a_variant_is_a_file_that_declares_its_symptoms(tree: Tree, tmp_path: Path) -> None:
    """The file is the one that the recipe shows."""
    recipe = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## Recipe: a transport variant\n")[2]
    shown = re.search(r"^ *```c\n(.*?)^ *```$", recipe, re.MULTILINE | re.DOTALL)
    assert shown
    (tree.root / "csrc/psm/p2p/variants/kept_events.c").write_text(textwrap.dedent(shown[1]), "utf-8")
    tree.build(tmp_path / "build")

    rows = {row["name"]: row for row in json.loads(tree.run("-m", "psmkit", "variants", "--format", "json"))}
    declared = rows["kept-events"]
    assert declared["wrong"] and declared["summary"] == "Free releases all but the events"
    assert (declared["verdict"], declared["codes"], declared["leaves"]) == ("leaking", ["PSM505"], ["events"])

    # Exit status 3: the data is right, and something is left.
    arguments = (
        "--ranks",
        "2",
        "--app-stream",
        "legacy,nonblocking",
        "--out",
        str(tmp_path / "run"),
        "--format",
        "json",
    )
    run = json.loads(tree.run("-m", "psmkit", "lab", "run", "--variant", "kept-events", *arguments, status=3))
    assert [rank["state"] for rank in run["ranks"]] == ["good", "good"]
    assert all("variant=kept-events" in case for case in run["cases"])
    assert run["analysis"]["verdict"] == declared["verdict"] and run["analysis"]["codes"] == declared["codes"]
    assert "event" in run["analysis"]["reason"]

    tree.run("scripts/docs.py")
    assert tree.changed() == {"csrc/psm/p2p/variants/kept_events.c", "docs/transport.md"}
    row = "| `kept-events` | Free releases all but the events | leaking | PSM505 | always | events |"
    assert row in (tree.root / "docs/transport.md").read_text("utf-8").splitlines()
