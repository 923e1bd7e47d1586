/* The socket to the runner: lines of text, data in hexadecimal. One thread uses it. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap.h"
#include "fault.h"

/* A stream to the runner, not messages between ranks: nothing can come twice, or in another order. */
PSM_FAULT_SITE_OF(site_exchange, "lab.exchange",
                  "a rank gives the others what they need at bootstrap; op is peers, connect",
                  PSM_FAULT_CAN_GENERIC | PSM_FAULT_CAN(PSM_FAULT_DROP) | PSM_FAULT_CAN(PSM_FAULT_SHORT) |
                      PSM_FAULT_CAN(PSM_FAULT_CORRUPT));

static int runner = -1, me, all_ranks;
static char *line;                        /* the answer; room for it grows */
static size_t line_room, line_used, kept; /* line_used: of the line before */

static _Noreturn void lost(const char *what)
{
    fprintf(stderr, "psm_rank: rank %d: %s the runner: %s\n", me, what, errno ? strerror(errno) : "it is gone");
    exit(3);
}

void lab_send_line(const char *text, size_t n)
{
    while (n > 0) {
        ssize_t sent = send(runner, text, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) lost("sending to");
        text += sent;
        n -= (size_t)sent;
    }
}

/* The next line without its end. Valid until the next call. */
static char *receive_line(void)
{
    memmove(line, line + line_used, kept - line_used);
    kept -= line_used;
    line_used = 0;
    for (size_t looked = 0;;) {
        char *end = memchr(line + looked, '\n', kept - looked);
        if (end) {
            *end = 0;
            line_used = (size_t)(end - line) + 1;
            return line;
        }
        looked = kept;
        if (kept == line_room && !(line = realloc(line, line_room *= 2))) lost("no memory for a line of");
        ssize_t got = recv(runner, line + kept, line_room - kept, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got == 0) errno = 0;
        if (got <= 0) lost("waiting for");
        kept += (size_t)got;
    }
}

/* The answer to `name`: what stands behind "word name ". */
static char *answer(const char *word, const char *name)
{
    char *text = receive_line();
    size_t n = strlen(word), m = strlen(name);
    if (strncmp(text, word, n) == 0 && text[n] == ' ' && strncmp(text + n + 1, name, m) == 0 &&
        (text[n + 1 + m] == ' ' || text[n + 1 + m] == 0))
        return text + n + 1 + m;
    fprintf(stderr, "psm_rank: rank %d: the runner says \"%.80s\", expected \"%s %s\"\n", me, text, word, name);
    exit(3);
}

void lab_connect(int fd, int rank, int ranks)
{
    char hello[64];
    runner = fd;
    me = rank;
    all_ranks = ranks;
    if (!(line = malloc(line_room = 1 << 16))) lost("no memory for a line of");
    lab_send_line(hello, (size_t)snprintf(hello, sizeof hello, "hello %d %d\n", rank, (int)getpid()));
}

void lab_stage(const char *name)
{
    char text[64];
    lab_send_line(text, (size_t)snprintf(text, sizeof text, "stage %s\n", name));
}

int lab_meet(const char *name, bool failed)
{
    char text[64];
    lab_send_line(text, (size_t)snprintf(text, sizeof text, "barrier %s %d\n", name, failed));
    return atoi(answer("go", name));
}

static char *put_hex(char *out, const uint8_t *data, size_t n)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        *out++ = digits[data[i] >> 4];
        *out++ = digits[data[i] & 15];
    }
    return out;
}

/* How many bytes were there; stops at the first that is no hexadecimal digit. */
static size_t get_hex(const char *text, uint8_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned value = 0;
        for (int k = 0; k < 2; k++) {
            char c = text[2 * i + (size_t)k];
            if (c >= '0' && c <= '9')
                value = value << 4 | (unsigned)(c - '0');
            else if (c >= 'a' && c <= 'f')
                value = value << 4 | (unsigned)(c - 'a' + 10);
            else
                return i;
        }
        out[i] = (uint8_t)value;
    }
    return n;
}

void lab_exchange(const char *name, void *const *out, void *const *in, const size_t *n, size_t *got)
{
    size_t room = 64;
    for (int r = 0; r < all_ranks; r++) room += out[r] ? 2 * n[r] + 16 : 0;
    char *text = malloc(room), *at = text;
    if (!text) lost("no memory for a line to");
    struct psm_fault fault = {.action = PSM_FAULT_NONE};
    if (psm_fault_hit(&site_exchange, &(struct psm_fault_args){.rank = me, .peer = -1, .op = name}, &fault))
        psm_fault_act_before(&fault);
    at += sprintf(at, "exchange %.32s", name);
    for (int r = 0; r < all_ranks && fault.action != PSM_FAULT_DROP; r++) {
        if (!out[r]) continue;
        bool less = fault.action == PSM_FAULT_SHORT && (uint64_t)fault.value < n[r];
        at += sprintf(at, " %d:", r);
        char *hex = at;
        at = put_hex(at, out[r], less ? (size_t)fault.value : n[r]);
        if (fault.action == PSM_FAULT_CORRUPT && at > hex) *hex = *hex == '0' ? 'f' : '0';
    }
    *at++ = '\n';
    lab_send_line(text, (size_t)(at - text));
    free(text);
    psm_fault_act_after(&fault);
    memset(got, 0, (unsigned)all_ranks * sizeof *got);
    char *rest = answer("exchanged", name);
    for (char *item; (item = strtok_r(rest, " ", &rest));) {
        char *colon;
        long r = strtol(item, &colon, 10);
        if (*colon != ':' || r < 0 || r >= all_ranks || !in[r]) continue;
        got[r] = get_hex(colon + 1, in[r], n[r]);
    }
}

void lab_gather(const char *name, const void *mine, size_t size, void *all, bool *present)
{
    void **out = calloc((unsigned)all_ranks, sizeof *out), **in = calloc((unsigned)all_ranks, sizeof *in);
    size_t *n = calloc((unsigned)all_ranks, sizeof *n), *got = calloc((unsigned)all_ranks, sizeof *got);
    if (!out || !in || !n || !got) lost("no memory for what is for");
    for (int r = 0; r < all_ranks; r++) {
        out[r] = mine ? (void *)(uintptr_t)mine : NULL; /* only read */
        in[r] = (char *)all + (size_t)r * size;
        n[r] = size;
    }
    lab_exchange(name, out, in, n, got);
    for (int r = 0; r < all_ranks; r++) present[r] = got[r] == size;
    free(out);
    free(in);
    free(n);
    free(got);
}
