"""What a report says beside its verdict fits the lines of the log: advice, explanations, and the words that it quotes."""

from __future__ import annotations

from pathlib import Path

from psmkit.report import render
from tests.analysis.texts import analyzed

THROWN = "terminate called after throwing an instance of 'std::runtime_error'\n"
TASK = "srun: error: gpu{0}: task {0}: Exited with exit code 1\n"
KILLING = "[2026-06-01 22:10:41,269] [INFO] [launch.py:428:sigkill_handler] Killing subprocess 361906\n"


def shown(tmp_path: Path, log: str) -> str:
    return " ".join(render(analyzed(tmp_path, log)).split())


def test_a_stack_without_its_top_begins_with_a_frame_of_a_library(tmp_path: Path) -> None:
    frames = "".join(
        f"[gpu7:4711] [ {n}] {library}({fn}+0x16)[0x152a7c63ab46]\n"
        for n, library, fn in (
            (2, "/lib64/libc.so.6", "raise"),
            (3, "/lib64/libc.so.6", "abort"),
            (4, "/a/libx.so.0", "run"),
        )
    )
    text = shown(tmp_path, frames)
    assert "The first frame in it outside the C library is in" in text


def test_nothing_is_sent_to_lines_above_the_first_one(tmp_path: Path) -> None:
    what = "  what():  Transport endpoint is not connected\n"
    assert "Read the lines above" not in shown(tmp_path, THROWN + what)
    assert "Read the lines above" in shown(tmp_path, "starts\n" + THROWN + what)


def test_the_text_of_an_exception_may_begin_on_the_next_line(tmp_path: Path) -> None:
    text = shown(tmp_path, THROWN + "  what():  \nerror: cudnnFind failed with CUDNN_STATUS_INTERNAL_ERROR\n")
    assert "std::runtime_error: error: cudnnFind failed" in text
    assert "Read the `what():` line" not in text


def test_equal_exit_codes_do_not_follow_from_each_other(tmp_path: Path) -> None:
    text = shown(tmp_path, TASK.format(1) + TASK.format(0))
    assert "exited with the same code; the log does not show whether that follows from it" in text
    assert "follows from it." not in text.replace("whether that follows from it.", "")


def test_a_launcher_that_was_interrupted_is_not_said_to_end_for_an_unknown_reason(tmp_path: Path) -> None:
    text = shown(tmp_path, "    time.sleep(1)\nKeyboardInterrupt\n" + KILLING)
    assert "The log shows a KeyboardInterrupt" in text and "No line shows which" not in text
    assert "No line shows which" in shown(tmp_path, KILLING)


def test_a_setting_with_a_timeout_in_it_tells_of_no_error(tmp_path: Path) -> None:
    rows = (
        "  rdzv_configs     : {'rank': 0, 'timeout': 900}\n  max_restarts     : 0\n" + "  run_id           : none\n" * 8
    )
    assert "tells of an error" not in shown(tmp_path, rows)


def test_a_line_that_calls_itself_a_warning_fails_no_job(tmp_path: Path) -> None:
    line = "Setup Custom allreduce failed with CUDART error: peer access is not supported. To silence this warning, specify --disable-custom-all-reduce.\n"
    assert analyzed(tmp_path, "connects to its peers\n" * 8 + line).verdict == "inconclusive"
    cut = line.partition(" To silence")[0] + "\n"
    assert analyzed(tmp_path, "connects to its peers\n" * 8 + cut).verdict == "failed"


def test_a_node_that_ray_lost_is_no_process_that_ended_with_a_code(tmp_path: Path) -> None:
    line = "The node with node id: 8a44 and ip: 10.0.0.5 has been marked dead because the detector has missed too many heartbeats from it.\n"
    text = shown(tmp_path, line)
    assert "no longer hears from this node" in text and "its exit code" not in text


def test_a_quote_begins_where_its_sentence_does(tmp_path: Path) -> None:
    line = "The socket times out, for one of three reasons that this library knows about, and here they are. " * 2
    text = analyzed(
        tmp_path, "works on\n" * 8 + line + "3. The communication link is disconnected. Look at it.\n"
    ).reason
    assert "The communication link is disconnected" in text


def test_a_timeout_whose_line_is_cut_is_a_timeout(tmp_path: Path) -> None:
    head = "[rank2]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 2] Timeout at NCCL work: 61, last enqueued NCCL work: 61, last completed NCCL work: 60.\n"
    caught = "[rank2]:[E ProcessGroupNCCL.cpp:1414] [PG 0 Rank 2] Process group watchdog thread terminated with exception: [Rank 2] Watchdog caught collective operation timeout: WorkNCCL("
    assert "work 61 timed out on rank 2; the line that names the operation is cut" in shown(tmp_path, head + caught)
    assert "whether it timed out or failed is not in the log" in shown(tmp_path, head)


def test_of_nested_tags_the_last_one_names_the_process(tmp_path: Path) -> None:
    line = "(LLMRayActor pid=417326) (EngineCore_DP0 pid=417634) ERROR 03-03 13:48:09 [core.py:1094] Invocation of the method failed\n"
    report = analyzed(tmp_path, line * 8)
    assert [c.pid for c in report.culprits] == [417634]
    assert "EngineCore_DP0" not in report.reason


def test_a_store_on_the_own_host_has_no_other_end_elsewhere(tmp_path: Path) -> None:
    failed = (
        "[E socket.cpp:610] [c10d] The client socket has failed to connect to any network address of ({}, 29500).\n"
    )
    assert "does not name the other end" not in shown(tmp_path, failed.format("127.0.0.1"))
    assert "does not name the other end" in shown(tmp_path, failed.format("node3"))
