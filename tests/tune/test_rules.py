"""Files of rules: what is read, what is refused with its line, and that every reader of TOML reads the same."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psmkit.tune import ALGORITHMS, OPS, PROTOCOLS, Query, Rule, RulesError, decide, read, to_csv, to_toml

MOST = 2**64 - 1


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_nvidias_columns_by_their_place(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.conf",
        "# comment\n\nallreduce,0,65536,tree,simple,2,1,-1,-1,1\nallgather,0,4294967295,ring,simple,4,2,-1\r\n",
    )
    first, second = read(path).rules
    assert first == Rule(
        ("allreduce",), (0, 65536), (1, 1), registered=1, algorithm="tree", protocol="simple", channels=2, line=3
    )
    assert (second.ops, second.nodes, second.registered, second.line) == (("allgather",), (2, 2), -1, 4)


def test_columns_by_name_with_ranges_units_and_wildcards(tmp_path: Path) -> None:
    text = '\ufeffop, bytes ,ranks,algorithm,note\n all* | reduce ,4K..1MiB,8-16,ring,"a, ""b"" # c" # said\n*,..1G,2..,*,\n'
    first, second = read(written(tmp_path / "a.csv", text)).rules
    assert first.ops == ("reduce", "allgather", "allreduce") and first.note == 'a, "b" # c'
    assert (first.bytes, first.ranks) == ((4096, 1 << 20), (8, 16))
    assert (second.ops, second.bytes, second.ranks, second.algorithm) == (OPS, (0, 1 << 30), (2, MOST), "default")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("allreduce,0,1,tree,simple,2,1", "7 cells; expected 8 to 10"),
        ("alltoall,0,1,tree,simple,2,1,1", 'op is "alltoall"; expected broadcast'),
        ("allreduce,9,1,tree,simple,2,1,1", "bytes: the range 9..1 is empty"),
        ("allreduce,0,1,oak,simple,2,1,1", 'algorithm is "oak"'),
        ("allreduce,0,1,tree,simple,65,1,1", 'channels is "65"; expected 1 to 64'),
        ("allreduce,0,99999999999999999999,tree,simple,2,1,1", "max_bytes is"),
        ('allreduce,"0,1', "a quote has no end"),
        ("allreduce,0,1,tree,simple,2,1,1,1,2", 'registered is "2"'),
        ("from_call,0", "from_call needs one number from 1"),
        ("op,colour", "unknown column colour"),
        ("op,bytes,min_bytes", "column min_bytes repeats column bytes"),
        ("allreduce,0,1,tree\x01,simple,2,1,1", "the control character 0x01"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = written(tmp_path / "a.csv", f"# one\n\n{line}\n")
    with pytest.raises(RulesError) as caught:
        read(path)
    assert caught.value.line == 3 and said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('[[rule]]\nop = "allreduce"\nbytes = 1\nmin_bytes = 2\n', 4, "min_bytes is set twice"),
        ("[[rule]]\nchannels = 010\n", 2, "is not a supported value"),
        ("[[rule]]\nop = allreduce\n", 2, "strings need quotes"),
        ('[[rule]]\nop = ["reduce",\n# c\n"allreduce"\n', 5, "expected a comma"),
        ("[rule]\n", 1, "unknown table rule"),
        ("from_call = 1\nfrom_call = 2\n", 2, "set twice"),
        ("[constants]\nbaseLatencies.ring = 1.0\n", 2, "no constant baseLatencies.ring"),
        ("[constants]\nllMaxBws.hopper.1node = -1.0\n", 2, "a number from 0"),
        ('[[rule]]\nnote = """x"""\n', 2, "multi-line strings"),
        ("[[rule]] x\n", 1, "before the end of the line"),
        ("[[rule]]\nchunk = 100\n", 2, "from 4K to 1G"),
    ],
)
def test_wrong_toml_is_named(tmp_path: Path, text: str, line: int, said: str) -> None:
    with pytest.raises(RulesError) as caught:
        read(written(tmp_path / "a.toml", text))
    assert caught.value.line == line and said in str(caught.value)


def test_what_is_no_file_or_too_much_is_refused(tmp_path: Path) -> None:
    for path, said in ((tmp_path, "not a regular file"), (tmp_path / "none", "cannot open it")):
        with pytest.raises(RulesError, match=said):
            read(path)
    with pytest.raises(RulesError, match="more than 1048576 bytes"):
        read(written(tmp_path / "a.csv", "#" * (1 << 20) + "\n"))
    with pytest.raises(RulesError, match="more than 4096 rules"):
        read(written(tmp_path / "a.csv", "op\n" + "*\n" * 4097))


@st.composite
def ranges(draw: st.DrawFn) -> tuple[int, int]:
    low, high = draw(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)).map(sorted))
    return draw(st.sampled_from([(0, MOST), (low, high), (low, low), (low, MOST)]))


RULES = st.builds(
    Rule,
    ops=st.sets(st.sampled_from(OPS), min_size=1).map(lambda ops: tuple(op for op in OPS if op in ops)),
    bytes=ranges(),
    nodes=ranges(),
    ranks=ranges(),
    nvl_domains=ranges(),
    pipe_ops=ranges(),
    registered=st.sampled_from((-1, 0, 1)),
    algorithm=st.sampled_from(("default", *ALGORITHMS)),
    protocol=st.sampled_from(("default", *PROTOCOLS)),
    channels=st.integers(0, 64),
    chunk=st.sampled_from((0, 4096, 1 << 20)),
    note=st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_characters="\x7f"), max_size=15).filter(
        lambda s: not any(0x7F <= ord(c) < 0xA1 for c in s)
    ),
)


@given(rules=st.lists(RULES, max_size=6))
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read_again(tmp_path: Path, rules: list[Rule]) -> None:
    def plain(found: tuple[Rule, ...]) -> list[Rule]:
        return [Rule(**{n: getattr(r, n) for n in Rule.__slots__ if n != "line"}) for r in found]

    assert plain(read(written(tmp_path / "a.csv", to_csv(rules, "head\nof it"))).rules) == rules
    assert plain(read(written(tmp_path / "a.toml", to_toml(rules, "head"))).rules) == rules


WORDS = st.sampled_from(
    '[[rule]] [constants] \n \n \r\n = , [ ] " \' # op bytes channels note from_call "reduce" "64K" 1 -1 1_0 01 1.5 1e3 true false '
    'nan inf 0x1 baseLatencies.ring.ll \\ \\n "" \'\' """ . - + 1979-05-27 {} \t é'.replace("\n", "¶").split(" ")
).map(lambda word: word.replace("¶", "\n"))


@given(words=st.lists(WORDS, max_size=20), blanks=st.booleans())
@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_toml_that_is_taken_is_toml_to_others(tmp_path: Path, words: list[str], blanks: bool) -> None:
    text = "[[rule]]\n" + (" " if blanks else "").join(words)
    try:
        found = read(written(tmp_path / "a.toml", text))
    except RulesError:
        return
    table = tomllib.loads(text)
    assert len(found.rules) == len(table["rule"])
    assert len(found.constants) == sum(len(v) for t in table.get("constants", {}).values() for v in t.values())
    for rule, entry in zip(found.rules, table["rule"], strict=True):
        assert rule.note == entry.get("note", "")


@given(data=st.binary(max_size=200))
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_read_or_refused(tmp_path: Path, data: bytes) -> None:
    for name in ("a.csv", "a.toml"):
        try:
            read(written(tmp_path / name, data))
        except RulesError as error:
            assert str(error)


def chosen(rules: list[Rule], q: Query) -> int:
    """The first rule that holds, by the words of the manual."""
    for n, rule in enumerate(rules):
        conditions = [
            q.op in rule.ops,
            *(
                low <= getattr(q, name) <= high
                for name in ("bytes", "ranks", "nodes", "nvl_domains", "pipe_ops")
                for low, high in [getattr(rule, name)]
            ),
            rule.registered in (-1, q.registered),
            not q.offered
            or any(
                rule.algorithm in ("default", pair.split("/")[0]) and rule.protocol in ("default", pair.split("/")[1])
                for pair in q.offered
            )
            or rule.algorithm == rule.protocol == "default",
        ]
        if all(conditions):
            return n
    return -1


SMALL = st.tuples(st.integers(0, 6), st.integers(0, 6)).map(lambda p: (min(p), max(p))) | st.just((0, MOST))


@given(
    rules=st.lists(
        st.builds(
            Rule,
            ops=st.just(OPS),
            bytes=SMALL,
            ranks=SMALL,
            pipe_ops=SMALL,
            registered=st.sampled_from((-1, -1, 0, 1)),
            algorithm=st.sampled_from(("default", "ring", "tree")),
            protocol=st.sampled_from(("default", "ll", "simple")),
        ),
        max_size=12,
    ),
    offered=st.sampled_from([(), ("ring/ll",), ("tree/simple", "ring/ll")]),
)
@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_first_rule_that_holds_decides(tmp_path: Path, rules: list[Rule], offered: tuple[str, ...]) -> None:
    queries = [
        Query("reduce", size, ranks, 1, 1, pipe_ops, registered, offered)
        for size in range(8)
        for ranks in (1, 3, 6)
        for pipe_ops in (1, 4)
        for registered in (0, 1)
    ]
    path = written(tmp_path / "a.csv", to_csv(rules))
    for query, decision in zip(queries, decide(path, queries), strict=True):
        n = chosen(rules, query)
        assert decision.line == (n + 2 if n >= 0 else 0), (query, decision)
