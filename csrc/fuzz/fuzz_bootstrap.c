/* Fuzz target of the lines that a rank gets from its runner. What is none of them ends a rank with a reason: here it
 * ends the input. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"

/* What a call had allocated when it was left is lost: the process would have ended. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}

static char said[256];
static jmp_buf ended;
static _Noreturn void fuzz_exit(int status)
{
    longjmp(ended, status + 1);
}
#define exit               fuzz_exit
#define fprintf(file, ...) snprintf(said, sizeof said, __VA_ARGS__) /* its reasons: millions of them */
#include "bootstrap.c"
#undef fprintf
#undef exit

enum { RANKS = 3, INFO = 24 };

static void listen_to(const uint8_t *data, size_t size)
{
    int ends[2];
    fuzz_need(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "no sockets");
    /* The runner has said all of it, and is gone. */
    fuzz_need(send(ends[1], data, size, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)size, "a socket holds no input");
    shutdown(ends[1], SHUT_WR);
    uint8_t mine[INFO] = {1}, all[RANKS * INFO], *in[RANKS];
    size_t n[RANKS] = {INFO, 5, INFO}, got[RANKS];
    bool present[RANKS];
    for (int r = 0; r < RANKS; r++) fuzz_need((in[r] = malloc(n[r])) != NULL, "no memory");
    free(line);
    line = NULL;
    line_used = kept = 0;
    said[0] = 0;
    if (setjmp(ended) == 0) {
        lab_connect(ends[0], 0, RANKS);
        void *out[RANKS] = {NULL, mine, mine};
        lab_exchange("connect", out, (void *const *)in, n, got);
        for (int r = 0; r < RANKS; r++) fuzz_need(got[r] <= n[r], "more bytes than there is room for");
        FUZZ_TAKEN();
        lab_meet("connected", false);
        lab_gather("peers", mine, sizeof mine, all, present);
    } else {
        fuzz_need(said[0] != 0, "ended without a reason");
    }
    for (int r = 0; r < RANKS; r++) free(in[r]);
    close(ends[0]);
    close(ends[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    listen_to(data, size < 60000 ? size : 60000);
    return 0;
}

#ifndef PSMKIT_LIBFUZZER
static size_t hex(uint8_t *out, size_t n)
{
    for (size_t i = 0; i < 2 * n; i++) out[i] = (uint8_t)"0123456789abcdef"[fuzz_below(16)];
    return 2 * n;
}

static size_t fuzz_right(uint8_t *out, size_t room)
{
    size_t n = 0;
    fuzz_need(room > 4096, "no room");
    for (int turn = 0; turn < 3; turn++) {
        if (turn == 1) {
            n += (size_t)sprintf((char *)out + n, "go connected %zu\n", fuzz_below(3));
            continue;
        }
        n += (size_t)sprintf((char *)out + n, "exchanged %s", turn ? "peers" : "connect");
        for (int r = 0; r < RANKS; r++) {
            if (fuzz_below(5) == 0) continue;
            n += (size_t)sprintf((char *)out + n, " %d:", fuzz_below(9) ? r : (int)fuzz_below(9) - 4);
            n += hex(out + n, fuzz_below(9) ? (r == 1 && !turn ? 5 : INFO) : fuzz_below(200));
        }
        out[n++] = '\n';
    }
    return n;
}
#endif
