"""Write the C source of the cffi module: build_cffi.py OUTPUT CDEF."""

import sys
from pathlib import Path

import cffi

builder = cffi.FFI()
header = Path(sys.argv[2])
builder.cdef(header.read_text(encoding="utf-8"))
builder.set_source("psmkit._native._telemetry", f'#include <stddef.h>\n#include <stdint.h>\n#include "{header}"\n')
builder.emit_c_code(sys.argv[1])
