# psmkit runs this in the Python of gdb, after a line that sets ASK: [pattern of a function, {key: [expressions]}]. For each frame whose function a pattern
# matches, it prints what its variables say: `psmkit: LWP #LEVEL FUNCTION key=value ...`. Without debug information it prints nothing.
import re

import gdb

MOST = 64  # frames of a thread


def value(frame, expressions):
    for text in expressions:
        try:
            frame.select()
            return int(gdb.parse_and_eval(text))
        except (gdb.error, ValueError, OverflowError, RuntimeError):
            continue  # optimized out, or a release without that field
    return None


def look():
    asked = [(re.compile(pattern), keys) for pattern, keys in ASK]
    for thread in gdb.selected_inferior().threads():
        thread.switch()
        frame, level = gdb.newest_frame(), 0
        while frame is not None and level < MOST:
            name = (frame.name() or "").split("(")[0]
            keys = next((keys for pattern, keys in asked if pattern.fullmatch(name)), None)
            # A function without a symbol table entry of its own has no variables that could be named.
            if keys is not None and frame.find_sal().symtab is not None:
                found = [(key, value(frame, texts)) for key, texts in keys.items()]
                words = ["%s=%d" % pair for pair in found if pair[1] is not None]
                if words:
                    print("psmkit: %d #%d %s %s" % (thread.ptid[1], level, name, " ".join(words)))
            frame, level = frame.older(), level + 1


try:
    look()
except gdb.error as error:
    print("psmkit: %s" % error)
