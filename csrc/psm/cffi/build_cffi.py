"""Write the C source of the cffi module of libpsm: build_cffi.py INCLUDE FACE OUTPUT.

The declarations are those of the public headers: there is no second list of them. The compiler fills in every layout.
"""

import re
import sys
from pathlib import Path

import cffi

VARIANTS = 16  # written in Python, in one process
# Callbacks have no argument of their own: connection->tcomm identifies the handlers, for the caller's side of a
# variant by the number of the function.
HANDLERS = """
psm_status psm_py_shared_init(psmProxyConnection *, psmProxyState *, int);
psm_status psm_py_setup(psmProxyConnection *, psmProxyState *, const void *, int, void *, int, int *);
psm_status psm_py_connect(psmProxyConnection *, psmProxyState *, const void *, int, void *, int, int *);
psm_status psm_py_free(psmProxyConnection *, psmProxyState *);
psm_status psm_py_progress(psmProxyState *, struct psmProxyArgs *);
psm_status psm_py_register(psmProxyConnection *, psmProxyState *, const void *, int, void *, int, int *);
psm_status psm_py_deregister(psmProxyConnection *, psmProxyState *, const void *, int, int *);
"""
CALLER = """
psm_status psm_py_send_connect_{n}(psmP2pConnector *, const struct psm_p2p_connect *);
psm_status psm_py_recv_connect_{n}(psmP2pConnector *, const struct psm_p2p_connect *);
psm_status psm_py_recv_setup_{n}(const struct psm_host *, const struct psm_peer_info *, const struct psm_peer_info *, int,
                                 int, struct psm_p2p_connect *, psmP2pConnector **);
"""


def declarations(text: str) -> str:
    """What a public header declares, as cffi reads it."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text.replace("\\\n", " "), flags=re.DOTALL)
    text = re.sub(r"^#define (\w+)\s+\d+\s*$", r"@define \1 ...", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE).replace("@define", "#define")
    text = re.sub(r"\bPSM_API\b|\bPSM_ALIGNED\(\d+\)|^PSM_SHAREABLE\(.*?\);", "", text, flags=re.MULTILINE)
    # The compiler knows sizes, offsets and padding.
    return re.sub(r"(\bstruct\s+\w*\s*\{[^{}]*)\}", r"\1 ...; }", text)


def main(include: Path, face: Path, output: str) -> None:
    headers = sorted((include / "psm").glob("psm*.h"))  # plan_trace.h is not libpsm's
    done: set[Path] = set()

    def read(header: Path) -> str:  # after what it includes
        if header in done:
            return ""
        done.add(header)
        text = header.read_text(encoding="utf-8")
        needed = (header.parent / name for name in re.findall(r'#include "(psm\w*\.h)"', text))
        return "".join(map(read, needed)) + declarations(text)

    builder = cffi.FFI()
    builder.cdef("".join(map(read, headers)))
    builder.cdef(declarations(face.read_text(encoding="utf-8").partition("/* cdef */")[0]))
    caller = "".join(CALLER.format(n=n) for n in range(VARIANTS))
    builder.cdef(f'extern "Python" {{ {HANDLERS} {caller} }}')
    lines = [*(f'#include "psm/{header.name}"' for header in headers), f'#include "{face.name}"']
    builder.set_source("psmkit._native._psm", "\n".join(lines) + "\n")
    builder.emit_c_code(output)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
