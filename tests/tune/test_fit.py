"""From measurements to rules: the rules choose what is best."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from psmkit.model.errors import InputError
from psmkit.tune import Missing, Query, Sample, decide, fit, read_samples, rules_of, to_csv, to_toml
from psmkit.tune.plot import html, svg

pytest.importorskip("scipy")

# Latency in microseconds, and microseconds a byte: each is best somewhere.
TRUTH = {
    ("allreduce", 16, 2): {
        ("tree", "ll"): (12, 4e-4),
        ("ring", "ll128"): (28, 6e-5),
        ("ring", "simple"): (55, 2.2e-5),
        ("tree", "simple"): (34, 8e-5),
    },
    ("allgather", 8, 1): {("ring", "ll"): (9, 2e-4), ("ring", "ll128"): (14, 5e-5), ("ring", "simple"): (21, 1e-5)},
}


def measured(noise: float = 0.02, outliers: float = 0.05, seed: int = 1) -> list[Sample]:
    """Five runs of each size from 256 bytes to 256 MiB; some are far too slow, as measurements are."""
    rand = random.Random(seed)
    found = []
    for (op, ranks, nodes), kinds in TRUTH.items():
        for (algorithm, protocol), (latency, byte) in kinds.items():
            for power in range(8, 29):
                for _ in range(5):
                    time = (latency + byte * 2**power) * math.exp(rand.gauss(0, noise))
                    time *= 5 if rand.random() < outliers else 1
                    found.append(Sample(op, 2**power, ranks, nodes, algorithm, protocol, time))
    return found


@pytest.mark.parametrize("form", ["csv", "toml"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_exported_table_chooses_the_best_at_99_of_100_sizes(tmp_path: Path, form: str, seed: int) -> None:
    rules = rules_of(fit(measured(seed=seed)))
    path = tmp_path / f"fitted.{form}"
    path.write_text(to_csv(rules) if form == "csv" else to_toml(rules))
    for (op, ranks, nodes), kinds in TRUTH.items():
        sizes = sorted({round(2 ** (8 + 20 * i / 4000)) for i in range(4001)})
        answers = decide(path, [Query(op, size, ranks, nodes) for size in sizes])
        right = 0
        for size, answer in zip(sizes, answers, strict=True):
            times = {kind: latency + byte * size for kind, (latency, byte) in kinds.items()}
            right += (answer.algorithm, answer.protocol) == min(times, key=times.__getitem__)
        assert right >= 0.99 * len(sizes)


def test_the_model_finds_latency_and_bandwidth_in_spite_of_outliers() -> None:
    for f in fit(measured(outliers=0.15)).fits:
        latency, byte = TRUTH[f.op, f.ranks, f.nodes][f.kind.algorithm, f.kind.protocol]
        assert f.latency == pytest.approx(latency, rel=0.03) and f.per_byte == pytest.approx(byte, rel=0.03)


def test_nothing_is_extrapolated_unasked(tmp_path: Path) -> None:
    model = fit(measured())
    with pytest.raises(Missing, match="measured: 256 to 268435456 bytes"):
        model.best("allreduce", 16, 2, 1 << 40)
    with pytest.raises(Missing, match="32 ranks on 4 nodes was not measured"):
        model.best("allreduce", 32, 4, 4096)
    with pytest.raises(Missing, match="at least 3 measured shapes"):
        model.best("allreduce", 32, 4, 4096, extrapolate=True)
    assert model.best("allreduce", 16, 2, 1 << 40, extrapolate=True).fit.kind.protocol == "simple"
    path = tmp_path / "fitted.csv"
    path.write_text(to_csv(rules_of(model)))
    for query in (Query("allreduce", 255, 16, 2), Query("allreduce", 1 << 29, 16, 2), Query("allreduce", 4096, 32, 4)):
        assert decide(path, [query])[0].line == 0


def test_a_law_over_shapes_guesses_another_and_says_so() -> None:
    samples = []
    for ranks, nodes in ((8, 1), (16, 2), (32, 4), (64, 8)):
        for power in range(8, 27):
            ring = 5 + 0.5 * 2 * (ranks - nodes * (nodes > 1)) + 2 * 2 * nodes * (nodes > 1) + 2e-5 * 2**power
            tree = 8 + 4 * 2 * math.log2(nodes) + 6e-5 * 2**power
            samples.append(Sample("allreduce", 2**power, ranks, nodes, "ring", "simple", ring))
            samples.append(Sample("allreduce", 2**power, ranks, nodes, "tree", "simple", tree))
    model = fit(samples)
    best = model.best("allreduce", 128, 16, 4096, extrapolate=True)
    assert best.fit.extrapolated and best.fit.kind.algorithm == "tree"
    rules = [r for r in rules_of(model, extrapolate=[(128, 16)]) if r.ranks == (128, 128)]
    assert [r.algorithm for r in rules] == ["tree", "ring"] and all("extrapolated" in r.note for r in rules)


def test_confidence_is_low_where_two_are_alike_and_such_ranges_can_be_left_out() -> None:
    rand = random.Random(4)
    samples = [
        Sample("reduce", 2**p, 8, 1, a, "simple", (20 + 1e-4 * 2**p) * math.exp(rand.gauss(0, 0.05)))
        for a in ("ring", "tree")
        for p in range(8, 24)
        for _ in range(3)
    ]
    model = fit(samples)
    confidence = model.best("reduce", 8, 1, 4096).confidence
    assert confidence is not None and confidence < 0.99
    assert not rules_of(model, confidence=0.9999)


def test_a_kind_without_a_rival_gives_no_rule_and_too_few_sizes_are_told() -> None:
    one = [Sample("reduce", 2**p, 8, 1, "ring", "simple", 10 + p) for p in range(8, 20)]
    few = [Sample("reduce", 4096, 8, 1, "tree", "simple", 11)]
    model = fit(one + few)
    assert rules_of(model) == []
    assert model.left_out == ("reduce tree/simple, 8 ranks on 1 node: fewer than 3 sizes",)


NCCL_TESTS = """\
# all_reduce_perf: NCCL_ALGO=Ring NCCL_PROTO=LL128
# nThread 1 nGpus 1 minBytes 8 maxBytes 128 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid 100 on    node-a device  0 [0x07] NVIDIA H100
#  Rank  1 Group  0 Pid 101 on    node-a device  1 [0x0f] NVIDIA H100
#  Rank  2 Group  0 Pid 102 on    node-b device  0 [0x07] NVIDIA H100
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    29.57    0.00    0.00      0    28.41    0.00    0.00      0
          16             4     float     sum      -1    28.91    0.00    0.00      0    28.68    0.00    0.00    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0
"""


def test_tables_of_nccl_tests(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text(NCCL_TESTS)
    samples = read_samples(path)
    assert [s.microseconds for s in samples] == [29.57, 28.41, 28.91, 28.68]
    assert samples[0] == Sample("allreduce", 8, 3, 2, "ring", "ll128", 29.57)
    path.write_text(NCCL_TESTS.replace("NCCL_ALGO=Ring", ""))
    with pytest.raises(InputError, match="--algorithm"):
        read_samples(path)
    assert read_samples(path, {"algorithm": "nvls"})[0].algorithm == "nvls"
    path.write_text(NCCL_TESTS.replace("N/A", "3"))
    with pytest.raises(InputError, match=r"out.txt:13: nccl-tests counted wrong results \(1 times\)"):
        read_samples(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no measurement in it"),
        ("op,bytes,us\nreduce,1,2\n", "data.csv:2: no ranks, expected a column or --ranks"),
        ("op,bytes,ranks,nodes,algorithm,protocol,us\n# x\nreduce,1,2,1,ring,ll,nan\n", "data.csv:3: bad microseconds"),
        ("op,bytes,ranks,nodes,algorithm,protocol,us\nreduce,1,2,1,oak,ll,1\n", 'bad algorithm "oak"'),
    ],
)
def test_wrong_measurements_are_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "data.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_samples(path)


def test_pictures_are_whole_and_escaped() -> None:
    from xml.etree import ElementTree

    model = fit(measured())
    fits = model.at("allreduce", 16, 2)
    rules = [r for r in rules_of(model) if r.ops == ("allreduce",)]
    picture = svg("<script>&", fits, measured(), rules)
    tree = ElementTree.fromstring(picture)
    space = "{http://www.w3.org/2000/svg}"
    curves = [e for e in tree.findall(f"{space}path") if "curve" in e.get("class", "") and len(e)]
    assert len(curves) == 4 and "<script>" not in picture
    texts = [e.text or "" for e in tree.iter(f"{space}text")]
    assert {"10 us", "1 ms", "100 ms", "256 B", "1 MiB", "tree/ll", "ring/simple"} <= set(texts)
    assert {"one measurement", "measured, too few to fit", "below: what the rules choose"} <= set(texts)
    titles = [e.text or "" for e in tree.iter(f"{space}title")]
    assert [t for t in titles if t.startswith("256 B to ")] and not [t for t in titles + texts if "e+" in t]
    page = html('"<b>"', [picture])
    assert "<b>" not in page and "http" not in page.replace("http://www.w3.org/2000/svg", "")
