"""nccl-tests of other releases, and errors in the middle of its table."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.texts import Rank, analyzed

HEAD = "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"
TABLE = (
    "# nThread 1 nGpus 2 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n#\n# Using devices\n"
    "#   Rank  0 Pid  41100 on gpu-lab device  0 [0x06] Tesla K80\n#   Rank  1 Pid  41100 on gpu-lab device  1 [0x07] Tesla K80\n"
)


def test_rows_without_a_root_have_no_wrong_values(tmp_path: Path) -> None:
    rows = "".join(
        f"  {size}     {size // 4}     float     sum    {time}   30.49   57.17  {error}    {time - 17}   30.51   57.20  {error}\n"
        for size, time, error in ((1 << 28, 35215, "4e-07"), (1 << 29, 64782, "0e+00"), (1 << 30, 70253, "1e-06"))
    )
    report = analyzed(tmp_path, HEAD + rows)
    assert report.verdict in ("healthy", "inconclusive")
    assert "wrong" not in report.reason and not report.culprits


def test_rows_with_a_root_still_show_wrong_values(tmp_path: Path) -> None:
    row = "  {}     {}     float     sum      -1    42.10   24.91   43.59       {}    41.70   25.15   44.01       0\n"
    report = analyzed(
        tmp_path, HEAD.replace("error", "#wrong") + row.format(1 << 20, 1 << 18, 0) + row.format(1 << 21, 1 << 19, 7)
    )
    assert report.verdict == "failed" and "wrong values" in report.reason


def test_an_error_behind_a_value_of_the_table_names_the_host_of_the_table(tmp_path: Path) -> None:
    error = "Test CUDA failure common.cu:253 'no kernel image is available for execution on the device'\n"
    report = analyzed(
        tmp_path, f"{TABLE}{HEAD}           8             2   float     sumgpu-lab: {error} .. gpu-lab: Test\n"
    )
    assert report.verdict == "failed"
    assert [(c.host, c.pid) for c in report.culprits] == [("gpu-lab", 41100)]


def test_a_strange_client_of_the_proxy_service_does_not_fail_a_job(tmp_path: Path) -> None:
    rank = Rank(0, 1).ready().work(3)
    rank.warn("proxy.cc:1111", "[Service thread] Unknown command 71829 from localRank -1", thread="service")
    report = analyzed(tmp_path, "\n".join(rank.destroy().lines) + "\n")
    assert report.verdict != "failed" and not report.culprits
    assert "PSM106" in {finding.code for finding in report.findings}


LEGEND = "# Errors with asterisks indicate errors that have exceeded the maximum threshold.\n"
SETTINGS = "# nThreads: 1 nGpus: 2 nRanks: 1 minBytes: 1024 maxBytes: 4096 step: 2(factor) warmupIters: 5 iters: 20 validation: 1\n#\n"


def rows(*errors: str) -> str:
    return "".join(
        f"  {1024 << at}     {256 << at}     float     sum    44.1   0.02   0.02  2e-07    43.7   0.02   0.02  {error}\n"
        for at, error in enumerate(errors)
    )


def test_the_legend_below_the_last_size_is_no_error_but_the_end_of_the_table(tmp_path: Path) -> None:
    whole = SETTINGS + HEAD + rows("0e+00", "1e-07", "1e-07")
    for legend in (LEGEND, LEGEND[:26]):
        report = analyzed(tmp_path, whole + legend)
        assert report.verdict == "healthy" and "marks no error" in report.reason


def test_a_table_that_is_marked_or_not_whole_is_not_healthy(tmp_path: Path) -> None:
    good = rows("0e+00", "1e-07", "1e-07")
    for text in (
        SETTINGS + HEAD + rows("0e+00", "1e-02*", "1e-07") + LEGEND,  # an error above the limit
        SETTINGS + HEAD + good,  # no legend: the test may not have finished
        HEAD + good + LEGEND,  # the begin is not in view
        SETTINGS + HEAD + good.replace("\n", "\n...\n", 1) + LEGEND,  # rows may be left out
        SETTINGS + HEAD + good[:-12] + "\n" + LEGEND,  # a torn row
        SETTINGS + HEAD + LEGEND,
    ):
        report = analyzed(tmp_path, text)
        assert report.verdict == "inconclusive" and not report.culprits, text
