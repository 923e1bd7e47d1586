"""Where each task of srun runs a launcher, the number of a task is no rank; where a task is a rank, it is."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.texts import analyzed

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.12 GiB. GPU {device} has a total capacity of 39.38 GiB of which 2.77 GiB is free.\n"


def raised(task: int, rank: int, size: str = "3.12") -> str:
    tag = f"{task}: [rank{rank}]: "
    head = f'{tag}Traceback (most recent call last):\n{tag}  File "/w/train_{rank}.py", line 31, in main\n{tag}    loss.backward()\n'
    return head + tag + OOM.format(device=rank % 2).replace("3.12", size)


def report(task: int, rank: int, pid: int) -> str:
    lines = (
        f"E0711 14:43:28.001000 400 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0 (pid: {pid}) of binary: /opt/bin/python\n",
        "Root Cause (first observed failure):\n",
        "[0]:\n",
        "  time      : 2026-07-11_14:43:26\n",
        f"  host      : node{task}\n",
        f"  rank      : {rank} (local_rank: 0)\n",
        f"  exitcode  : 1 (pid: {pid})\n",
    )
    return (
        "".join(f"{task}: {line}" for line in lines)
        + f"srun: error: node{task}: task {task}: Exited with exit code 1\n"
    )


def test_all_ranks_that_ran_out_of_memory_are_named(tmp_path: Path) -> None:
    text = "".join(raised(task, 2 * task + one) for task in (0, 1) for one in (0, 1))
    found = analyzed(tmp_path, text + report(1, 2, 4302) + report(0, 0, 4100))
    assert (
        found.reason == "ranks 0 to 3 exited with code 1: out of device memory (3.12 GiB)"
        or found.reason.startswith("ranks 0, 1, 2 and 3 exited with code 1: out of device memory")
    )
    assert {c.rank for c in found.culprits} == {0, 1, 2, 3}
    first = next(f for f in found.findings if f.title == found.reason)
    assert "Slurm's task" not in first.explanation and "does not show whether" not in first.explanation
    assert any("/w/train_2.py" in e.text for e in first.evidence)


def test_a_frame_that_two_ranks_print_is_cited_where_this_rank_prints_it(tmp_path: Path) -> None:
    text = "".join(raised(task, 2 * task + one) for task in (0, 1) for one in (0, 1)).replace("train_3", "train_2")
    found = analyzed(tmp_path, text + report(1, 3, 4303))
    first = next(f for f in found.findings if f.title == found.reason)
    (frame,) = [e for e in first.evidence if "line 31" in e.text]
    assert "[rank3]" in frame.text


def test_another_size_is_another_error(tmp_path: Path) -> None:
    text = raised(0, 0, size="4.50") + raised(1, 2)
    found = analyzed(tmp_path, text + report(1, 2, 4302) + report(0, 0, 4100))
    assert {c.rank for c in found.culprits} == {2}


def test_the_number_of_a_launcher_is_no_rank(tmp_path: Path) -> None:
    lost = "[W324 13:46:04.931 TCPStore.cpp:131] [c10d] recvVector failed on SocketImpl(fd=4, addr=[n2]:53386, remote=[n1]:29501): failed to recv, got 0 bytes\n"
    agent = "W0324 13:40:00.1 4100 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded\n"
    found = analyzed(tmp_path, f"0: {agent}1: {agent}1: {lost}")
    assert "a process lost the connection" in found.reason and "rank 1" not in found.reason
    ranked = analyzed(tmp_path, f"0: step\n1: {lost}")  # a task is a rank
    assert "rank 1 lost the connection" in ranked.reason
