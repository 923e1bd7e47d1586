"""The roles in api.def: known ones only, and on every handle that a call takes or gives."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from psmkit.cudaapi import apidef
from psmkit.lab.cuda import functions

_HANDLES = {
    "cudaStream_t": "stream",
    "CUstream": "stream",
    "cudaEvent_t": "event",
    "CUevent": "event",
    "CUmemGenericAllocationHandle": "mem",
    "cudaMemPool_t": "pool",
    "CUmemoryPool": "pool",
    "cudaGraphExec_t": "exec",
    "CUgraphExec": "exec",
}


@pytest.fixture(scope="module")
def gen_san() -> ModuleType:
    path = Path(__file__).parents[2] / "csrc" / "cuda" / "gen_san.py"
    spec = importlib.util.spec_from_file_location("gen_san", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_handle_that_a_call_takes_is_checked() -> None:
    bare = [f"{f.name}({p.name})" for f in functions() for p in f.parameters if p.type in _HANDLES and not p.roles]
    assert bare == []


def test_role_of_a_handle_is_of_its_kind() -> None:
    for f in functions():
        for p in f.parameters:
            kinds = {role.partition(".")[2] for role, _ in p.roles}
            if p.type in _HANDLES:
                assert kinds == {_HANDLES[p.type]}, f"{f.name}({p.name})"


def test_every_role_becomes_a_check(gen_san: ModuleType) -> None:
    for f in functions():
        before, after = gen_san.checks(f)
        lines = "\n".join([*before, *after])
        assert bool(lines) == gen_san.has_roles(f)
        for p in f.parameters:
            for role, _ in p.roles:
                assert p.name in lines, f"{f.name}: @{role}"


def test_unknown_role_is_an_error_that_names_the_line(gen_san: ModuleType) -> None:
    (f,) = apidef.parse("rt 12,13 - - cudaError_t cudaFree(void *devPtr @frei)")
    with pytest.raises(ValueError, match=r"api.def:1: .*@frei"):
        gen_san.checks(f)


def test_shim_leaves_out_what_has_other_parameters_in_the_other_soname(gen_san: ModuleType) -> None:
    two = "rt 12 - - cudaError_t cudaFoo(cudaStream_t s @use.stream)\nrt 13 - - cudaError_t cudaFoo(int n, cudaStream_t s @use.stream)"
    one = "rt 12,13 - - cudaError_t cudaBar(cudaStream_t s @use.stream)"
    code, symbols = gen_san.shim(
        [*apidef.parse(f"{two}\n{one}"), *apidef.parse("drv 2.0 - - CUresult cuInit(unsigned int f)")],
        {"cudaStream_t", "int", "unsigned"},
    )
    assert "cudaBar" in code and "cudaFoo" not in code
    assert "    cudaBar;\n" in symbols and "cudaFoo" not in symbols
