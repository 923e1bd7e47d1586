"""NCCL errors as vLLM, SGLang, TensorRT-LLM and NCCL's examples print them, without a line of NCCL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.outside import nccl
from tests.analysis.texts import analyzed

_ERROR = "unhandled system error (run with NCCL_DEBUG=INFO for details)"
_TEXT = f"RuntimeError: NCCL error: {_ERROR}\n"
_CHECK = f"Failed, NCCL error /src/cpp/ncclUtils.cpp:88 '{_ERROR}'\n"


def raised(tag: str) -> str:
    return f'{tag}Traceback (most recent call last):\n{tag}  File "pynccl.py", line 279, in check\n{tag}{_TEXT}'


VLLM = "(VllmWorkerProcess pid={}) ERROR 01-29 20:00:47 multiproc_worker_utils.py:240] "


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (raised(VLLM.format(350)), [(None, 350)]),
        (raised("(WorkerDict pid=350, ip=10.0.0.7) "), [("10.0.0.7", 350)]),
        (raised(VLLM.format(350)) + raised(VLLM.format(351)), []),  # which one failed first is not known
        (raised(VLLM.format(350)).replace("unhandled system error", "remote process exited or there was a network error"), []),
    ],
)  # fmt: skip
def test_the_only_process_whose_tag_stands_before_the_error_is_named(
    text: str, named: list[tuple[str | None, int]], tmp_path: Path
) -> None:
    found = analyzed(tmp_path, text)
    assert found.verdict == "failed"
    assert [(c.host, c.pid) for c in found.culprits] == named


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        (raised("(Worker_TP1 pid=903) ERROR 08-19 19:00:55 [multiproc_executor.py:597] "), 1),
        (raised("[rank1]: "), 1),
        ("[2025-06-05 10:45:19 TP3] Scheduler hit an exception: " + raised(""), 3),
        (f"[11/18/2025-09:33:30] [TRT-LLM] [RANK 2] [E] Failed: [TensorRT-LLM][ERROR] Assertion failed: {_CHECK}", 2),
        (f"[1,2]<stderr>:RuntimeError: [TensorRT-LLM][ERROR] Assertion failed: {_CHECK}", 2),
    ],
)
def test_the_rank_of_a_frameworks_error_is_named(text: str, rank: int, tmp_path: Path) -> None:
    found = analyzed(tmp_path, text)
    assert found.verdict == "failed"
    assert [c.rank for c in found.culprits] == [rank]
    assert found.findings[0].title.endswith("unhandled system error")


@pytest.mark.parametrize(
    "text",
    [_CHECK, f"[TensorRT-LLM][ERROR] [TensorRT-LLM] Assertion failed: {_CHECK}", "NCCL Error 3: internal error\n"],
)
def test_an_error_without_a_rank_fails_the_run_and_names_nobody(text: str, tmp_path: Path) -> None:
    found = analyzed(tmp_path, text * 4)
    assert (found.verdict, [f.code for f in found.findings]) == ("failed", ["PSM401"])
    assert not found.culprits


def test_several_workers_with_the_same_error_are_no_culprits(tmp_path: Path) -> None:
    found = analyzed(tmp_path, "".join(raised(f"(Worker_TP{r} pid={900 + r}) ") for r in range(2)))
    assert found.verdict == "failed"
    assert not found.culprits


def test_a_warning_of_nccl_says_more_than_the_framework(tmp_path: Path) -> None:
    warn = "node0:1001:1001 [1] init.cc:263 NCCL WARN Cuda failure 'out of memory'\nnode0:1001:1001 [1] NCCL INFO init.cc:1840 -> 1\n"
    found = analyzed(tmp_path, nccl(0, 1, nranks=2) + warn + raised("[rank1]: "))
    assert [f.code for f in found.findings if f.severity == "error"] == ["PSM509"]


def test_a_check_of_tensorrt_llm_that_something_catches_fails_nothing(tmp_path: Path) -> None:
    text = "[TensorRT-LLM][ERROR] Assertion failed: request is too long (/src/batch.cpp:12)\n"
    assert analyzed(tmp_path, nccl(0, 1, nranks=2, ended=True) + text).verdict == "healthy"
    assert analyzed(tmp_path, text).verdict == "inconclusive"


_XLA = "NCCL operation ncclGroupEnd() failed: "
_NOTED = " Last NCCL warning(error) log entry (may be unrelated) '{}'"


@pytest.mark.parametrize(
    "head",
    [
        "jax.errors.JaxRuntimeError: ",
        "jaxlib.xla_extension.XlaRuntimeError: ",
        "[T5]09:52:36jax.errors.JaxRuntimeError: ",
        "",
    ],
)
@pytest.mark.parametrize("place", ["", "external/xla/xla/service/gpu/nccl_utils.cc:275: "])
@pytest.mark.parametrize("tail", ["", "; current tracing scope: all-reduce-start.163", "." + _NOTED.format("") + "."])
def test_the_error_of_xla_is_no_error_of_the_program(head: str, place: str, tail: str, tmp_path: Path) -> None:
    found = analyzed(tmp_path, f"{head}INTERNAL: {place}{_XLA}invalid usage{tail}\n")
    assert (found.verdict, found.findings[0].code) == ("failed", "PSM401")
    assert found.findings[0].title == "NCCL returned an error to the framework on a rank: invalid usage"


@pytest.mark.parametrize("end", [".", ". [executable_name='jit_train_step']", ".; current tracing scope: all-reduce.3"])
def test_xla_repeats_nccls_last_warning(end: str, tmp_path: Path) -> None:
    noted = _NOTED.format("Cuda failure 2 'out of memory'")
    found = analyzed(tmp_path, f"XlaRuntimeError: INTERNAL: {_XLA}unhandled cuda error.{noted}{end}\n").findings[0]
    assert (found.code, found.title.rpartition(": ")[2]) == ("PSM509", "Cuda failure 2 'out of memory'")
    assert "`Last error:`" not in found.explanation


def test_xla_names_the_memory_that_it_could_not_get(tmp_path: Path) -> None:
    text = "INTERNAL: failed to allocate 1.50GiB (1610612736 bytes) from device collective memory: unhandled cuda error, Last NCCL warning(error) log entry (may be unrelated): Cuda failure 2 'out of memory'\n"
    for head in ("", "jax.errors.JaxRuntimeError: "):
        assert analyzed(tmp_path, head + text).findings[0].code == "PSM509"
