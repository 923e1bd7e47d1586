"""Load a library in a separate process and report the contents of its tables. A script that imports nothing from psmkit.

Standard input: {"path", "tables": {symbol: [size, [offset, ...]]}}. File descriptor argv[1]: {"error"} or {"tables": {symbol: {"name",
"slots": [set or not, ...]}}}.
"""

import ctypes
import json
import os
import sys


def main() -> None:
    task = json.load(sys.stdin)
    answer = os.fdopen(int(sys.argv[1]), "w")
    try:
        library = ctypes.CDLL(task["path"], mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        json.dump({"error": str(error)}, answer)
        answer.close()
        return
    # in_dll crashes on a symbol without an address: it takes it for an error without a text.
    find = ctypes.CDLL(None).dlsym
    find.restype, find.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)
    found = {}
    for symbol, (size, offsets) in task["tables"].items():
        address = find(library._handle, symbol.encode())
        if not address:
            continue  # an indirect function that returns no table: NCCL finds none either
        data = bytes((ctypes.c_char * size).from_address(address))
        slots = [data[offset : offset + 8] for offset in offsets]
        name = None
        if slots and any(slots[0]):
            text = ctypes.cast(int.from_bytes(slots[0], sys.byteorder), ctypes.c_char_p).value or b""
            name = os.fsdecode(text[:256])
        found[symbol] = {"name": name, "slots": [any(slot) for slot in slots]}
    json.dump({"tables": found}, answer)
    answer.close()
    os._exit(0)  # skips the library's destructors


main()
