"""Paths whose names are replaced: directories of systems, libraries, packages and sources of NCCL stay."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Protocol

__all__ = ["PUBLIC_WORDS", "Paths"]


class _Names(Protocol):
    def place(self, kind: str, name: str) -> str: ...
    def host(self, name: str) -> str: ...
    def user(self, name: str) -> str: ...
    def knows(self, kind: str, name: str) -> bool: ...
    def common(self, name: str) -> bool: ...


_PACKAGES = frozenset(
    "torch torchvision torchaudio torchelastic triton nvidia numpy scipy pandas transformers accelerate deepspeed vllm sglang megatron "
    "lightning ray jax jaxlib flax tensorflow horovod apex nemo trl peft datasets fire click mpi4py cupy cuda nccl rccl transformer_engine "
    "flash_attn xformers bitsandbytes wandb fairscale colossalai paddle mmcv mmengine diffusers tokenizers huggingface_hub uvicorn fastapi "
    "starlette multiprocess tqdm hydra omegaconf pytest openrlhf verl swift litgpt torchtitan psmkit pip setuptools".split()
)
#: Words of paths that name no one, beside those that messages have.
PUBLIC_WORDS = _PACKAGES | frozenset(
    "usr lib lib32 lib64 libs bin sbin etc opt var tmp home users root mnt media srv run share local include src source sources build builds "
    "dist site packages dist-packages site-packages python pypy conda miniconda anaconda miniforge mambaforge venv env envs virtualenv cache "
    "scratch work workspace workspaces project projects data dataset datasets model models checkpoint checkpoints ckpt log logs output outputs "
    "out err stdout stderr std txt json jsonl yaml yml toml xml csv html md py pyc pyx so cpp cc cxx cu cuh hpp hxx gz zst xz bz tar tgz zip pkl "
    "pickle pt pth bin rec psmkit rank ranks node nodes host hosts worker workers master job jobs task slurm train trainer training test tests "
    "testing example examples script scripts main app apps server client tool tools util utils common core base config configs conf cfg run runs "
    "runner launch launcher launchers elastic distributed multiprocessing api engine engines executor experimental nvidia amd rocm cuda nvcc hpcx "
    "mpi ompi openmpi mpich intel aws amazon efa ofi libfabric ucx ucc mellanox nccl rccl vccl plugin plugins ext exts net ib gin tuner profiler "
    "transport transports graph device devices misc register proxy socket channel bootstrap enqueue init group debug collectives coll p2p shm nvls "
    "linux gnu x86 x64 aarch arm amd64 noarch thread threads process trace traces dump dumps stack stacks ras record records hung crash error errors "
    "warn info message messages kern syslog dmesg journal report old new final latest tmpdir pytorch torchrun mpirun mpiexec srun sbatch nohup "
    "pretrain finetune finetuning sft inference generate eval evaluate benchmark benchmarks perf all reduce gather scatter reduce broadcast "
    "sendrecv alltoall hello world simple demo sample samples raw merged file files name names user part parts step epoch iter shm memory topo "
    "topology system card cpu gpu gpus numa pci nvml driver drivers version versions release debian ubuntu centos rhel generic container docker "
    "containerd kube kubelet pods pod namespace service domain bld csrc token copied inspect facts ended stacks flight manifest environment processes git".split()
)
_PART = re.compile(r"[^\W_]+")
_BACK = re.compile(r"\\+")
_SYSTEM = re.compile(r"^/(?:proc|sys|dev)(?:/|$)")
_PROC = re.compile(r"^(/proc/)(\d+)(?=/|$)")
_LIBRARY = re.compile(r"^lib[\w.+-]*\.so(?:\.[\d.]+)?$")
_SOURCE = re.compile(r"(?:^|/)src/(?:[\w.-]+/)*[\w-]+\.(?:cc|cu|cuh|cpp|c|h|hpp)$")
_HOMES = ("home", "Users")
_FEWEST = 5
_SHORT = 2  # a word of so few letters is no name
_MOST = 12  # parts of a component that are looked at together


class Paths:
    """Replaces the names in paths."""

    def __init__(self, names: _Names, public: Collection[str]) -> None:
        self._names, self._public = names, public

    def path(self, path: str) -> str:
        """A path in which each name is replaced by itself."""
        if "\\" in path and "/" not in path:
            between = iter((*_BACK.findall(path), ""))
            return "".join(part + next(between) for part in self.path(_BACK.sub("/", path)).split("/"))
        if _SYSTEM.match(path):
            return self.known(path)
        source = _SOURCE.search(path)
        kept = ""
        if source is not None:
            path, kept = path[: source.start()], path[source.start() :]
        parts = path.split("/")
        out: list[str] = []
        for i, part in enumerate(parts):
            before = parts[i - 1] if i else ""
            if before in ("site-packages", "dist-packages") and part.partition(".")[0] in _PACKAGES:
                out += parts[i:]
                break
            if before in _HOMES and part:
                out.append(self._names.user(part))
            elif part in ("", "~", ".", "..") or (i == len(parts) - 1 and _LIBRARY.match(part)):
                out.append(part)
            else:
                out.append(self.component(part))
        return "/".join(out) + kept

    def known(self, text: str) -> str:
        """A text in which the hosts, users and pids that are known are replaced, and no other word."""
        match = _PROC.match(text)
        if match:
            return match[1] + self._names.place("pid", match[2]) + self.component(text[match.end() :], strangers=False)
        return self.component(text, strangers=False)

    def component(self, text: str, strangers: bool = True) -> str:
        """One name of a path: its words are replaced, unless they are public."""
        parts = list(_PART.finditer(text))
        out, at, i, of_host = [], 0, 0, False
        while i < len(parts):
            out.append(text[at : parts[i].start()])
            end, new = self._longest(text, parts, i, _FEWEST if not of_host else 1)
            of_host = new is not None and not text[parts[i].start() : parts[end].end()].isdecimal()
            if new is None:
                word = parts[i].group()
                new = self._word(word) if strangers else word
                end = i
            out.append(new)
            at, i = parts[end].end(), end + 1
        return "".join((*out, text[at:]))

    def _longest(self, text: str, parts: list[re.Match[str]], i: int, fewest: int) -> tuple[int, str | None]:
        """The longest run of words from the i-th that is the name of a host or a user, or a pid of so many digits, and what takes its place."""
        names = self._names
        for end in range(min(len(parts), i + _MOST) - 1, i - 1, -1):
            word = text[parts[i].start() : parts[end].end()]
            if end == i and word.isdecimal():
                if len(word) >= fewest and names.knows("pid", word):
                    return end, names.place("pid", word)
                continue
            if names.common(word):
                continue
            if names.knows("ip", word):
                return end, names.place("ip", word)
            if names.knows("host", word):
                return end, names.host(word)
            if names.knows("user", word):
                return end, names.user(word)
        return i, None

    def _word(self, word: str) -> str:
        bare = "".join(c for c in word if not c.isdigit()).lower()
        if len(bare) <= _SHORT or bare in self._public or word.lower() in self._public:
            return word
        return self._names.place("name", word)
