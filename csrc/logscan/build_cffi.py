"""Write the C source of the cffi module: build_cffi.py OUTPUT CDEF...

What is declared stands in headers that hold no preprocessor lines but those of an include guard and of includes, which are passed over.
"""

import re
import sys
from pathlib import Path

import cffi

builder = cffi.FFI()
headers = [Path(name) for name in sys.argv[2:]]
for header in headers:
    builder.cdef(re.sub(r"^\s*#.*$", "", header.read_text(encoding="utf-8"), flags=re.MULTILINE))
includes = "".join(f'#include "{header}"\n' for header in headers)
builder.set_source("psmkit._native._logscan", f"#include <stddef.h>\n#include <stdint.h>\n{includes}")
builder.emit_c_code(sys.argv[1])
