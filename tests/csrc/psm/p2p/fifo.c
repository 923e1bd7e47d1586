/* Two processes and a FIFO of libpsm: `stream SLOTS BYTES TOTAL KIND MOST` sends bytes in pieces of odd sizes, up to
 * MOST, and compares them; `threads`, too, but two threads of one process are the ends, of one mapping; `differ`
 * attaches with other sizes, `forged` receives what no sender writes, `room` tells how much fits, `time` what a message
 * costs. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/internal.h"
#include "p2p/fifo.c" /* for a second end of one mapping */
#include "psm/psm_fifo.h"
#include "shm/line.h"
#include "shm/segment.h"

static uint8_t byte_at(uint64_t at)
{
    return (uint8_t)(at * 0x9e3779b97f4a7c15u >> 40);
}

static void wait_a_little(unsigned *turns)
{
    if (++*turns % 512 == 0)
        sched_yield(); /* both may have one processor */
    else
        psm_cpu_relax();
}

static void send_all(psmFifo *fifo, const uint8_t *data, uint64_t bytes)
{
    unsigned turns = 0;
    while (bytes > 0) {
        size_t n = psmFifoTrySend(fifo, data, bytes);
        if (n == 0) wait_a_little(&turns);
        data += n;
        bytes -= n;
    }
}

static bool receive_all(psmFifo *fifo, uint8_t *data, uint64_t bytes)
{
    unsigned turns = 0;
    while (bytes > 0) {
        size_t n = psmFifoTryReceive(fifo, data, bytes);
        if (n == SIZE_MAX) return false;
        if (n == 0) wait_a_little(&turns);
        data += n;
        bytes -= n;
    }
    return true;
}

/* What one end sends, and the other one compares. */
struct load {
    psmFifo *fifo;
    uint64_t total, most;
};

static void *send_load(void *argument)
{
    const struct load *load = argument;
    uint8_t *data = malloc(load->total + 1);
    for (uint64_t i = 0; i < load->total; i++) data[i] = byte_at(i);
    for (uint64_t at = 0, piece = 1; at < load->total; at += piece, piece = piece * 3 % load->most + 1) {
        if (piece > load->total - at) piece = load->total - at;
        send_all(load->fifo, data + at, piece);
    }
    free(data);
    return NULL;
}

static bool receive_load(const struct load *load)
{
    uint8_t *data = malloc(load->total + 1);
    uint64_t wrong = 0;
    for (uint64_t at = 0, piece = 7; at < load->total; at += piece, piece = piece * 5 % (load->most / 2 + 1) + 1) {
        if (piece > load->total - at) piece = load->total - at;
        if (!receive_all(load->fifo, data + at, piece)) return puts(psm_last_error()->text), false;
    }
    for (uint64_t i = 0; i < load->total; i++) wrong += data[i] != byte_at(i);
    bool empty = psmFifoTryReceive(load->fifo, data, 1) == 0;
    printf("%llu wrong, empty %d\n", (unsigned long long)wrong, empty);
    free(data);
    return wrong == 0 && empty;
}

static int stream(uint32_t slots, uint32_t slot_bytes, struct load load, int kind)
{
    struct psm_share share;
    int fd, status;
    if (psmFifoCreate(kind, slots, slot_bytes, &load.fifo) != PSM_OK) return puts(psm_last_error()->text), 3;
    psmFifoShare(load.fifo, &share, &fd);
    pid_t child = fork();
    if (child == 0) {
        if (psmFifoAttach(&share, fd, slots, slot_bytes, &load.fifo) != PSM_OK) return puts(psm_last_error()->text), 3;
        send_load(&load);
        psmFifoClose(load.fifo);
        _exit(0); /* the parent's end of the FIFO is a copy here, and no leak */
    }
    bool right = receive_load(&load);
    waitpid(child, &status, 0);
    psmFifoClose(load.fifo);
    return !right || status != 0;
}

static int threads(uint32_t slots, uint32_t slot_bytes, struct load load)
{
    if (psmFifoCreate(PSM_SHARE_MEMFD, slots, slot_bytes, &load.fifo) != PSM_OK) return 3;
    psmFifo end = *load.fifo;
    struct load sent = {.fifo = &end, .total = load.total, .most = load.most};
    pthread_t sender;
    if (pthread_create(&sender, NULL, send_load, &sent) != 0) return 3;
    bool right = receive_load(&load);
    pthread_join(sender, NULL);
    psmFifoClose(load.fifo);
    return !right;
}

/* How many messages fit before the receiver has done anything, and after it has found nothing more. */
static int room(uint32_t slots, uint32_t slot_bytes)
{
    psmFifo *fifo;
    if (psmFifoCreate(PSM_SHARE_MEMFD, slots, slot_bytes, &fifo) != PSM_OK) return 3;
    psmFifo sender = *fifo;
    uint8_t *data = calloc(1, slot_bytes);
    unsigned first = 0, taken = 0, then = 0;
    if (psmFifoTrySend(&sender, data, slot_bytes) > 0) taken++;
    for (unsigned i = 0; i < taken; i++)
        if (psmFifoTryReceive(fifo, data, slot_bytes) == 0) return 1;
    bool empty = psmFifoTryReceive(fifo, data, slot_bytes) == 0;
    while (psmFifoTrySend(&sender, data, slot_bytes) > 0) first++;
    while (psmFifoTryReceive(fifo, data, slot_bytes) > 0) taken++;
    while (psmFifoTrySend(&sender, data, slot_bytes) > 0) then++;
    printf("empty %d, %u fit, then %u, %u taken\n", empty, first, then, taken);
    free(data);
    psmFifoClose(fifo);
    return 0;
}

static int differ(void)
{
    psmFifo *fifo, *other = NULL;
    struct psm_share share;
    int fd;
    if (psmFifoCreate(PSM_SHARE_MEMFD, 8, 256, &fifo) != PSM_OK) return 3;
    psmFifoShare(fifo, &share, &fd);
    psm_status status = psmFifoAttach(&share, fd, 4, 512, &other);
    printf("%s %s\n", psm_status_name(status), psm_last_error()->text);
    psmFifoClose(fifo);
    return 0;
}

static int forged(void)
{
    psmFifo *fifo;
    struct psm_share share;
    struct psm_segment segment;
    uint8_t buffer[64];
    int fd;
    if (psmFifoCreate(PSM_SHARE_MEMFD, 2, 16, &fifo) != PSM_OK) return 3;
    psmFifoShare(fifo, &share, &fd);
    if (psmFifoTrySend(fifo, "abc", 3) != 3 || psm_segment_attach(&segment, &share, fd) != PSM_OK) return 3;
    psmFifo *receiver;
    if (psmFifoAttach(&share, fd, 2, 16, &receiver) != PSM_OK) return 3;
    uint32_t much = 1 << 20;
    memcpy((uint8_t *)segment.data + 128 + 8, &much, sizeof much); /* what the slot says that it has */
    bool refused = psmFifoTryReceive(receiver, buffer, sizeof buffer) == SIZE_MAX;
    printf("%s %s\n", psm_status_name(psm_last_error()->status), psm_last_error()->text);
    psm_segment_close(&segment);
    psmFifoClose(receiver);
    psmFifoClose(fifo);
    return !refused;
}

static void pin(int processor)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    sched_setaffinity(0, sizeof set, &set); /* where there is no such processor it stays */
}

static int measure(uint64_t bytes, uint64_t rounds)
{
    psmFifo *there, *back;
    uint32_t slot_bytes = bytes > 48 ? 256 << 10 : 48;
    if (psmFifoCreate(PSM_SHARE_MEMFD, 8, slot_bytes, &there) != PSM_OK ||
        psmFifoCreate(PSM_SHARE_MEMFD, 8, slot_bytes, &back) != PSM_OK)
        return 3;
    uint8_t *data = calloc(1, bytes), answer = 0;
    memset(data, 1, bytes);
    pid_t child = fork();
    pin(child == 0);
    if (child == 0) {
        memset(data, 2, bytes);
        for (uint64_t i = 0; i < rounds; i++) {
            receive_all(there, data, bytes);
            send_all(back, bytes > 48 ? &answer : data, bytes > 48 ? 1 : bytes);
        }
        _exit(0);
    }
    uint64_t begin = psm_clock_ns();
    for (uint64_t i = 0; i < rounds; i++) {
        send_all(there, data, bytes);
        receive_all(back, data, bytes > 48 ? 1 : bytes);
    }
    uint64_t ns = psm_clock_ns() - begin;
    waitpid(child, NULL, 0);
    if (bytes > 48)
        printf("%llu bytes: %.2f GB/s\n", (unsigned long long)bytes, (double)(bytes * rounds) / (double)ns);
    else
        printf("%llu bytes: %.1f ns one way\n", (unsigned long long)bytes, (double)ns / (double)rounds / 2);
    free(data);
    psmFifoClose(there);
    psmFifoClose(back);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 7 && strcmp(argv[1], "stream") == 0)
        return stream((uint32_t)atoi(argv[2]), (uint32_t)atoi(argv[3]),
                      (struct load){.total = strtoull(argv[4], NULL, 10), .most = strtoull(argv[6], NULL, 10)},
                      atoi(argv[5]));
    if (argc == 6 && strcmp(argv[1], "threads") == 0)
        return threads((uint32_t)atoi(argv[2]), (uint32_t)atoi(argv[3]),
                       (struct load){.total = strtoull(argv[4], NULL, 10), .most = strtoull(argv[5], NULL, 10)});
    if (argc == 4 && strcmp(argv[1], "room") == 0) return room((uint32_t)atoi(argv[2]), (uint32_t)atoi(argv[3]));
    if (argc == 2 && strcmp(argv[1], "differ") == 0) return differ();
    if (argc == 2 && strcmp(argv[1], "forged") == 0) return forged();
    if (argc == 4 && strcmp(argv[1], "time") == 0)
        return measure(strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
    return 2;
}
