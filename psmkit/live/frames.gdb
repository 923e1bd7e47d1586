# psmkit runs this in the Python of gdb, after a line that sets ASK: [pattern of a function, of the one that it has called, of the one that called it,
# {key: [expressions]}]. For each frame whose functions the patterns match, it prints what its variables say: `psmkit: LWP #LEVEL FUNCTION key=value ...`. Without debug information it prints nothing.
import re

import gdb

MOST = 64  # frames of a thread
ITEMS = 1 << 16  # of an array


class Empty(gdb.Function):
    # The first of some items of an array that is all zero; -1: there is none, or no array.
    def invoke(self, array, count):
        size, count = array.dereference().type.sizeof, min(int(count), ITEMS)
        raw = gdb.selected_inferior().read_memory(int(array), size * count).tobytes() if int(array) and count > 0 else b""
        return next((i for i in range(len(raw) // size) if not any(raw[i * size : (i + 1) * size])), -1)


def value(frame, expressions):
    for text in expressions:
        try:
            frame.select()
            number = int(gdb.parse_and_eval(text))
            if number >= 0:  # less: no answer
                return number
        except (gdb.error, ValueError, OverflowError, RuntimeError):
            continue  # optimized out, or a release without that field
    return None


def name_of(frame):
    return (frame.name() or "").split("(")[0] if frame is not None else ""


def look():
    asked = [([re.compile(text or ".*") for text in patterns], keys) for *patterns, keys in ASK]
    for thread in gdb.selected_inferior().threads():
        thread.switch()
        frame, level, called = gdb.newest_frame(), 0, ""
        while frame is not None and level < MOST:
            name = name_of(frame)
            around = (name, called, name_of(frame.older()))
            keys = next((k for patterns, k in asked if all(p.fullmatch(n) for p, n in zip(patterns, around))), None)
            # A function without a symbol table entry of its own has no variables that could be named.
            if keys and frame.find_sal().symtab is not None:
                found = [(key, value(frame, texts)) for key, texts in keys.items()]
                words = ["%s=%d" % pair for pair in found if pair[1] is not None]
                if words:
                    print("psmkit: %d #%d %s %s" % (thread.ptid[1], level, name, " ".join(words)))
            frame, level, called = frame.older(), level + 1, name


Empty("psmkit_empty")
try:
    look()
except gdb.error as error:
    print("psmkit: %s" % error)
