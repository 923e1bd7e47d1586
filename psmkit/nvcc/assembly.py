"""The assembly of a CUDA source: addresses of kernels for their stubs, and the table of kernels and variables."""

from __future__ import annotations

import re

from psmkit.nvcc.options import NvccError
from psmkit.nvcc.source import SECTION, SELF

__all__ = ["with_table"]

_INTERESTING = re.compile(
    rf"^(?:\t\.type\t(?P<function>[^,\n]+), ?[@%]function|\t{SELF} (?P<register>\S+)|\t\.section\t{re.escape(SECTION)}(?P<memory>[cd])\.[^\n]*|\t\.size\t(?P<object>[^,\n]+), (?P<size>\d+))$",
    re.MULTILINE,
)
_ADDRESS = {
    "x86_64": "\tmovq\t{symbol}@GOTPCREL(%rip), {register}",
    "aarch64": "\tadrp\t{register}, :got:{symbol}\n\tldr\t{register}, [{register}, :got_lo12:{symbol}]",
}


def with_table(text: str, machine: str) -> str:
    """The assembly with each stub's own address in it, and with the table of what is to be registered.

    Raises:
        NvccError: psm-nvcc does not know the machine.
    """
    if machine not in _ADDRESS:
        raise NvccError(f"psm-nvcc makes code for {' and '.join(_ADDRESS)}, not for {machine}")
    out: list[str] = []
    entries: list[tuple[str, str, int]] = []
    at = 0
    function = memory = ""
    for match in _INTERESTING.finditer(text):
        if match["function"]:
            function = match["function"]
        elif match["register"]:
            symbol = function.removesuffix(".cold")
            out += (text[at : match.start()], _ADDRESS[machine].format(symbol=symbol, register=match["register"]))
            at = match.end()
            entries.append((symbol, "0", 0))
        elif match["memory"]:
            memory = match["memory"]
        elif memory:
            entries.append((match["object"], match["size"], int(memory == "c")))
            memory = ""
    out.append(text[at:])
    table = ['\t.section\t.data.rel.ro.psm_nvcc,"aw"', "\t.balign\t8", "psm_nvcc_here:"]
    strings = ['\t.section\t.rodata.psm_nvcc,"a"']
    for i, (symbol, size, constant) in enumerate(dict.fromkeys(entries)):
        table += (f"\t.quad\t{symbol}", f"\t.quad\t.Lpsm_nvcc_{i}", f"\t.quad\t{size}", f"\t.quad\t{constant}")
        strings += (f".Lpsm_nvcc_{i}:", f'\t.string\t"{symbol}"')
    table += ["\t.quad\t0, 0, 0, 0"]
    mark = ['\t.section\t.psm_nvcc,"",@progbits', '\t.string\t"psm-nvcc: no device code"']
    return "".join(out) + "\n".join([*table, *strings, *mark, ""])
