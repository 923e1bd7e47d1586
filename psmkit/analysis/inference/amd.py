"""Advice for AMD's GPUs: the tools and settings of ROCm in place of those of CUDA."""

from __future__ import annotations

import re

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.model.late import regex

__all__ = ["for_its_gpus", "headed"]

#: What only RCCL, ROCm's runtime and AMD's driver print.
_OF_AMD = ("init.rccl_build", "rccl.hip_failure", "rccl.rocr", "sys.hsa.", "sys.rocm.", "sys.kernel.amdgpu.")
#: Errors that torch prints alike on both, with another first word.
_OF_BOTH = ("sys.cuda.error", "sys.cuda.oom", "torch.watchdog.cuda_error")
_MOST_LINES = 16
#: The words of CUDA, and those of ROCm for the same.
_WORDS = {
    "CUDA_VISIBLE_DEVICES": "HIP_VISIBLE_DEVICES (or ROCR_VISIBLE_DEVICES)",
    "CUDA_LAUNCH_BLOCKING=1, or under compute-sanitizer,": "AMD_SERIALIZE_KERNEL=3",
    "CUDA_LAUNCH_BLOCKING=1": "AMD_SERIALIZE_KERNEL=3",
    "nvidia-smi topo -m": "rocm-smi --showtopo",
    "nvidia-smi -q": "rocm-smi -a",
    "nvidia-smi": "rocm-smi",
    "PYTORCH_CUDA_ALLOC_CONF": "PYTORCH_HIP_ALLOC_CONF",
    "(Xid lines)": "(amdgpu)",
    "Xid lines": "lines of amdgpu",
}
_ERROR = "CUDA error"
_FORMS = regex("|".join(re.escape(word) for word in sorted(_WORDS, key=len, reverse=True)))


@once
def _is_amd(job: Job) -> bool:
    """Whether lines show that the job runs on AMD's GPUs, and none of them that it runs on NVIDIA's."""
    if job.events("sys.kernel.xid"):
        return False
    if any(job.events(name) for name in _OF_AMD):
        return True
    events = job.events(*_OF_BOTH)[:_MOST_LINES]
    texts = ["".join(q.text for q in job.quotes.of(e.ref)) for e in events]
    return bool(texts) and all("HIP " in text for text in texts)


def headed(job: Job, title: str) -> str:
    """A title whose first words name the runtime of the GPUs of a job; what it quotes stays."""
    return f"HIP error{title.removeprefix(_ERROR)}" if title.startswith(_ERROR) and _is_amd(job) else title


def for_its_gpus(job: Job, text: str) -> str:
    """Advice in the words of the GPUs of a job."""
    return _FORMS.sub(lambda m: _WORDS[m[0]], text) if _FORMS.search(text) and _is_amd(job) else text
