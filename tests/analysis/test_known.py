"""Lines that public issues are known from."""

from __future__ import annotations

import pytest

from psmkit.catalogue import load


@pytest.mark.parametrize(
    ("text", "issue"),
    [
        (
            "Error while attaching to shared memory segment /dev/shm/nccl-x (size 0), error: No such file or directory (2)",
            "NVIDIA/nccl#2190",
        ),
        ("socketFinalizeAccept: wrong magic 74656d2f20544547 != 7970663b906d70b9", "NVIDIA/nccl#1808"),
        (
            "Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes, error: No space left on device (28)",
            "NVIDIA/nccl#290",
        ),
        ("Call to socket failed : Too many open files", "NVIDIA/nccl#550"),
        ("Call to ibv_dealloc_pd failed with error Device or resource busy errno 16", "sii-research/VCCL#36"),
        ("ncclProxyClientGetFd call to tpRank 1 handle 0x7fcc180052b0 failed : 3", "NVIDIA/nccl#2379"),
        ("Cuda failure 700 'an illegal memory access was encountered'", None),
    ],
)
def test_issue_is_recognised_by_its_words(text: str, issue: str | None) -> None:
    phrase = load().phrase("issue", text)
    assert (phrase.issue if phrase is not None else None) == issue
