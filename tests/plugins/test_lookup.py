"""Which names each release opens for a plugin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from psmkit.model.errors import PsmkitError
from psmkit.plugins import all_releases, release
from psmkit.plugins.abi import KINDS, nccl_releases, tables
from psmkit.plugins.lookup import LIBRARY_KINDS, RCCL_RELEASES, Opening, choose, names, opening, settings, variable

SHEET = Path(__file__).parents[3] / "shared" / "abi" / "nccl_plugin_abi.json"
SELF = "the program itself"


def opened(name: str, kind: str, value: str | None, net: str | None = None, vendor: str = "NCCL") -> list[str]:
    found = opening(release(vendor, name), kind, value, net)
    return [one for plugin in found.plugins for one in names(plugin)]


NET = [
    ("2.4.2", "psm", ["libnccl-net.so"]),  # no variable
    ("2.10.3", "psm", ["libnccl-net.so"]),
    ("2.11.4", "psm", ["libnccl-net-psm.so"]),
    ("2.11.4", None, ["libnccl-net.so"]),
    ("2.20.5", "", ["libnccl-net.so"]),
    ("2.20.5", "/x/libfoo.so", ["libnccl-net-/x/libfoo.so.so"]),
    ("2.21.5", "psm", ["psm", "libnccl-net-psm.so"]),
    ("2.21.5", "static_plugin", ["static_plugin", "libnccl-net-static_plugin.so"]),
    ("2.22.3", "static_plugin", [SELF]),
    ("2.22.3", "S", [SELF]),  # any beginning of the word
    ("2.22.3", "STATIC_PLUGINS", ["STATIC_PLUGINS", "libnccl-net-STATIC_PLUGINS.so"]),
    ("2.26.6", "a,b", ["a,b", "libnccl-net-a,b.so"]),  # no lists yet
    ("2.26.6", "none", ["none", "libnccl-net-none.so"]),
    ("2.26.6", "", ["libnccl-net.so"]),
    ("2.27.3", "psm", ["libnccl-net-psm.so"]),
    ("2.27.3", "/x/libfoo.so", ["libnccl-net-/x/libfoo.so.so"]),
    ("2.27.3", "libfoo.so", ["libfoo.so"]),
    ("2.27.3", "STATIC_PLUGIN", ["libnccl-net-STATIC_PLUGIN.so"]),
    ("2.27.3", "a,libb.so", ["libnccl-net-a.so", "libb.so"]),
    ("2.27.5", "a,,b", ["a", "libnccl-net-a.so", "b", "libnccl-net-b.so"]),
    ("2.27.5", "libfoo.so", ["libfoo.so"]),
    ("2.27.5", "./foo.so", ["./foo.so"]),
    ("2.27.5", "s,psm", [SELF, "psm", "libnccl-net-psm.so"]),
    ("2.27.5", "", []),  # not even the default name
    ("2.27.5", None, ["libnccl-net.so"]),
    ("2.27.7", "none", ["none", "libnccl-net-none.so"]),
    ("2.28.3", "None", []),
    ("2.28.3", "none,psm", ["none", "libnccl-net-none.so", "psm", "libnccl-net-psm.so"]),  # the whole value only
    ("2.32.3", "psm", ["psm", "libnccl-net-psm.so"]),
]


@pytest.mark.parametrize(("name", "value", "expected"), NET)
def test_names_that_are_opened_for_a_net_plugin(name: str, value: str | None, expected: list[str]) -> None:
    assert opened(name, "net", value) == expected
    assert opened(name, "collnet", value) == expected


OTHERS = [
    ("2.18.6", "tuner", "x", None, []),
    ("2.19.1", "tuner", None, None, []),
    ("2.19.1", "tuner", "x", None, ["x"]),
    ("2.20.5", "tuner", "static", None, ["static"]),
    ("2.21.5", "tuner", None, None, ["libnccl-tuner.so", "libnccl-net.so"]),
    ("2.21.5", "tuner", "x", "psm", ["x", "libnccl-tuner-x.so", "psm", "libnccl-net-psm.so"]),
    ("2.27.5", "tuner", "a,b", "", ["a,b", "libnccl-tuner-a,b.so"]),  # one name, no list
    ("2.28.3", "tuner", "none", "psm", []),
    ("2.23.4", "profiler", "x", None, ["x"]),
    ("2.23.4", "profiler", None, None, ["libnccl-profiler.so"]),
    ("2.25.1", "profiler", "stat", None, [SELF]),
    ("2.26.2", "profiler", "x", None, ["x", "libnccl-profiler-x.so"]),
    ("2.27.3", "profiler", "x", None, ["libnccl-profiler-x.so"]),
    ("2.27.7", "profiler", "x", "psm", ["x", "libnccl-profiler-x.so"]),
    ("2.28.3", "profiler", "x", "psm", ["x", "libnccl-profiler-x.so", "psm", "libnccl-net-psm.so"]),
    ("2.28.3", "env", "x", None, []),
    ("2.28.7", "env", None, None, ["libnccl-env.so"]),
    ("2.28.7", "env", "x", "psm", ["x", "libnccl-env-x.so"]),
    ("2.28.7", "env", "none", None, []),
    ("2.28.7", "gin", "x", "psm", ["psm", "libnccl-net-psm.so"]),  # no variable of its own
    ("2.29.7", "gin", "x", "psm", ["x", "libnccl-gin-x.so", "psm", "libnccl-net-psm.so"]),
    ("2.29.7", "gin", "none", "psm", ["psm", "libnccl-net-psm.so"]),
    ("2.30.7", "rma", None, "", ["libnccl-rma.so"]),
    ("2.22.3", "profiler", "x", None, []),
]


@pytest.mark.parametrize(("name", "kind", "value", "net", "expected"), OTHERS)
def test_names_that_are_opened_for_other_plugins(
    name: str, kind: str, value: str | None, net: str | None, expected: list[str]
) -> None:
    assert opened(name, kind, value, net) == expected


def test_only_the_tuner_of_2_19_and_2_20_is_bound_lazily() -> None:
    lazy = {(use.name, kind) for use in all_releases() for kind in LIBRARY_KINDS if opening(use, kind, "x").lazy}
    assert lazy == {(name, "tuner") for name in ("2.19.1", "2.19.3", "2.19.4", "2.20.3", "2.20.5")}


def test_lists_end_where_nccl_has_no_more_places() -> None:
    found = opening(release("NCCL", "2.27.5"), "net", ",".join(f"./{n}.so" for n in range(20)))
    assert len(found.plugins) == 14 and "first 14" in found.why
    assert len(opening(release("NCCL", "2.30.7"), "gin", ",".join(f"./{n}.so" for n in range(20)), "").plugins) == 13
    long = opening(release("NCCL", "2.27.5"), "net", f"{'x' * 255},{'y' * 254}")
    assert [one[0].name for one in long.plugins] == ["y" * 254] and "254 characters" in long.why


@pytest.mark.parametrize(("name", "value", "expected"), [
    ("2.10.3", "psm", ["librccl-net.so"]),
    ("2.11.4", "psm", ["librccl-net-psm.so"]),
    ("2.20.5", "psm", ["librccl-net-psm.so"]),
    ("2.21.5", "psm", ["psm", "librccl-net-psm.so"]),
    ("2.21.5", "S", ["S", "librccl-net-S.so"]),
])  # fmt: skip
def test_rccl_has_names_of_its_own(name: str, value: str, expected: list[str]) -> None:
    assert opened(name, "net", value, vendor="RCCL") == expected


def test_rccl_looks_for_the_tables_of_the_same_nccl_without_a_profiler() -> None:
    old, new = release("RCCL", "2.20.5"), release("RCCL", "2.21.5")
    assert [table.version for table in old.tables("tuner")] == [1]
    assert [table.version for table in new.tables("tuner")] == [2]
    assert [table.version for table in new.tables("net")] == [8, 7, 6, 5]
    assert not any(release("RCCL", name).tables("profiler") for name in RCCL_RELEASES)


def test_a_library_called_s_cannot_be_chosen_by_its_suffix_where_s_means_the_program() -> None:
    path = "/plugins/libnccl-net-s.so"
    assert settings(release("NCCL", "2.21.5"), "net", path)[0] == ("NCCL_NET_PLUGIN", "s")
    for name in ("2.22.3", "2.26.6", "2.27.5", "2.30.7"):
        assert settings(release("NCCL", name), "net", path)[0] == ("NCCL_NET_PLUGIN", "libnccl-net-s.so")
    assert settings(release("NCCL", "2.27.3"), "net", path)[0] == ("NCCL_NET_PLUGIN", "s")


def test_a_library_called_none_cannot_be_chosen_by_its_suffix_where_none_means_none() -> None:
    path = "/plugins/libnccl-tuner-none.so"
    assert settings(release("NCCL", "2.27.7"), "tuner", path)[0] == ("NCCL_TUNER_PLUGIN", "none")
    assert settings(release("NCCL", "2.28.3"), "tuner", path)[0] == ("NCCL_TUNER_PLUGIN", "libnccl-tuner-none.so")


def test_a_path_with_a_comma_is_no_setting_where_the_variable_is_a_list() -> None:
    path = "/plug,ins/x.so"
    assert ("NCCL_NET_PLUGIN", path) in settings(release("NCCL", "2.26.6"), "net", path)
    assert ("NCCL_NET_PLUGIN", path) not in settings(release("NCCL", "2.27.5"), "net", path)


def test_every_setting_that_is_told_opens_the_library() -> None:
    for path in (
        "/p/libnccl-net-psm.so",
        "/p/libnccl-net.so",
        "/p/librccl-net-psm.so",
        "/p/other.so",
        "/p/libnccl-tuner.so",
    ):
        for one in all_releases():
            for kind in LIBRARY_KINDS:
                for name, value in settings(one, kind, path):
                    if name == variable(kind):
                        found = opening(one, kind, value)
                    else:
                        assert name == "NCCL_NET_PLUGIN"
                        found = opening(one, kind, None, value)
                    assert choose(found, path) is not None, (str(one), kind, name, value)


@pytest.mark.parametrize(
    ("text", "name", "judged"),
    [
        ("2.27.5", "2.27.5", "2.27.5"),
        ("v2.27.5-1", "2.27.5", "2.27.5"),
        ("2.27.4", "2.27.4", "2.27.3"),
        ("2.33", "2.33.0", "2.32.3"),
    ],
)
def test_releases_are_read_and_unknown_ones_are_said_to_be_judged_by_the_one_before(
    text: str, name: str, judged: str
) -> None:
    found = release("NCCL", text)
    assert (found.name, found.facts) == (name, judged)
    assert bool(found.note) == (name != judged)
    assert "is unknown" in release("RCCL", "2.27.7").note


@pytest.mark.parametrize("text", ["", "2", "two", "2.27.5.1", "1.3.5", "2.3.7", "2.27.5\n--x", "9" * 40 + ".1"])
def test_what_is_no_release_is_refused(text: str) -> None:
    with pytest.raises(PsmkitError):
        release("NCCL", text)


@pytest.mark.skipif(not SHEET.exists(), reason="the fact sheet is not beside the repository")
def test_each_release_looks_for_the_symbols_of_the_fact_sheet() -> None:
    sheet = json.loads(SHEET.read_text())
    lookups = {**sheet["symbol_lookup_by_release_binary"], **sheet["symbol_lookup_by_release_source"]}
    assert set(lookups) <= set(nccl_releases())  # psmkit may know more
    for name, symbols in lookups.items():
        found = {table.symbol for kind in KINDS for table in release("NCCL", name).tables(kind)}
        assert found == set(symbols), name
    known = {version["symbol"]: version for kind in sheet["plugins"].values() for version in kind["versions"]}
    own = {table.symbol: table for table in tables()}
    assert set(known) <= set(own)
    for symbol, version in known.items():
        table = own[symbol]
        assert table.first == version["looked_up_from_release"], symbol
        if version["dropped_in"]:  # what the sheet's newest release looks for, a later one may look for, too
            assert (table.last, table.dropped) == (version["last_release_seen"], version["dropped_in"]), symbol


def test_an_opening_knows_its_tries() -> None:
    assert Opening(()).tries == ()
    assert len(opening(release("NCCL", "2.27.5"), "net", "a,b").tries) == 4
