"""The options of nvcc."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.nvcc.driver import main
from psmkit.nvcc.options import NvccError, parse


def test_the_ways_to_give_a_value_are_one() -> None:
    for words in (["-std=c++17"], ["--std", "c++17"], ["-std", "c++17"], ["--std=c++17"]):
        assert parse([*words, "x.cu"]).host == ["-std=c++17"]
    for words in (["-Iinc"], ["-I", "inc"], ["--include-path=inc"], ["-I=inc"]):
        assert parse(words).host == ["-Iinc"]
    assert parse(["-DA=1", "-D", "B=x=y", "-D__C"]).host == ["-DA=1", "-DB=x=y", "-D__C"]
    assert parse(["-O3", "-g"]).host == ["-O3", "-g"]


def test_options_for_device_code_and_their_values_have_no_effect() -> None:
    call = parse(
        "-gencode=arch=compute_90,code=sm_90 -gencode arch=compute_80,code=[sm_80,compute_80] -arch=sm_90 -Xptxas "
        "-maxrregcount=96 -Xfatbin -compress-all -lineinfo --use_fast_math -G -rdc=true -cudart shared -t 4 x.cu -c".split()
    )
    assert (call.mode, call.inputs, call.host, call.link) == ("compile", ["x.cu"], [], [])
    assert call.defines == ["-D__CUDACC_RDC__"]


def test_lists_for_the_host_compiler_and_linker_are_taken_apart() -> None:
    host = ["-Xcompiler", "-Wall,-Wextra", "--compiler-options", "-fPIC -fvisibility=hidden", "-Xcompiler=-DX=\\,"]
    link = ["-Xlinker", "--enable-new-dtags", "-Xlinker", "-rpath,$ORIGIN", "-L/lib", "-lnccl", "-lrt"]
    call = parse([*host, "x.o", *link])
    assert call.host == ["-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden", "-DX=,"]
    assert call.link == [
        *("x.o", "-Xlinker", "--enable-new-dtags", "-Xlinker", "-rpath", "-Xlinker", "$ORIGIN"),
        *("-L/lib", "-lnccl", "-lrt"),
    ]


def test_the_kind_of_work_is_found() -> None:
    for words, mode in (
        ("-MM -dc x.cu", "-MM"),
        ("-dc x.cu", "compile"),
        ("-dw x.cu", "compile"),
        ("-dlink x.o -o y.o", "dlink"),
        ("x.o -o y", "link"),
        ("-E x.cu", "preprocess"),
        ("-lib x.o -o y.a", "lib"),
    ):
        assert parse(words.split()).mode == mode


def test_options_of_a_file_stand_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "options").write_text("-O2 -Xcompiler\n-fPIC\n")
    assert parse(["-g", "-optf", str(tmp_path / "options"), "x.cu"]).host == ["-g", "-O2", "-fPIC"]
    with pytest.raises(NvccError, match="the options file /nowhere cannot be read"):
        parse(["--options-file=/nowhere"])


def test_an_unknown_option_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-c", "-fbadly", "x.cu"]) == 2
    assert capsys.readouterr().err == (
        "psm-nvcc: unknown option -fbadly: psm-nvcc accepts the options of nvcc; give one of the host compiler as "
        "-Xcompiler -fbadly\n"
    )
    assert parse(["-forward-unknown-to-host-compiler", "-fbadly"]).host == ["-fbadly"]


def test_options_that_ask_for_device_code_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-ptx", "x.cu"]) == 2
    assert capsys.readouterr().err == "psm-nvcc: -ptx is refused: device code is not compiled\n"
    assert main(["-c", "-o"]) == 2
    assert capsys.readouterr().err == "psm-nvcc: the option -o needs a value\n"
