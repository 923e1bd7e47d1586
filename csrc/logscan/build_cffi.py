"""Write the C source of the cffi module: build_cffi.py CDEF OUTPUT."""

import sys
from pathlib import Path

import cffi

builder = cffi.FFI()
builder.cdef(Path(sys.argv[1]).read_text(encoding="utf-8"))
builder.set_source("psmkit._native._logscan", '#include <stddef.h>\n#include <stdint.h>\n#include "logscan.cdef.h"\n')
builder.emit_c_code(sys.argv[2])
