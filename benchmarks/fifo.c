/* Bytes from a buffer of one process into a buffer of another, pinned to two processors: libpsm's FIFO in host memory
 * and its p2p path beside what the machine gives. One line a turn: NAME SECONDS.
 *
 *   fifo small TURNS                  one way of 8 bytes: a word on a cache line, and psm_fifo.h
 *   fifo bandwidth BYTES TURNS        memcpy, process_vm_readv; psm_fifo.h and a bare FIFO in a memfd, of 8 x 256 KiB
 *                                     and, -128, of 8 x 128 KiB, which a processor's own cache holds beside the rest
 *
 * Turns of different ways alternate in one process, so that other work on the machine disturbs all of them. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "psm/psm_fifo.h"

enum { SLOTS = 8, SLOT = 256 << 10, LESS = 128 << 10, SMALL = 8, SMALL_ROUNDS = 500, LINE = 64, PAGE = 4096 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu % (size_t)sysconf(_SC_NPROCESSORS_ONLN), &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, psm_last_error()->text[0] ? psm_last_error()->text : strerror(errno));
    exit(1);
}

static void report(const char *name, double seconds)
{
    printf("%s %.9f\n", name, seconds);
    fflush(stdout);
}

/* Zeroed memory that a child of fork shares. */
static void *shared(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) die("mmap");
    return at;
}

/* The child, on the other processor; it does not outlive the parent. */
static pid_t other(void)
{
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) die("fork");
    pin(child == 0);
    if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    return child;
}

static inline void relax(unsigned *turns)
{
    /* Where two processors are not free, the other end has to run here. */
    if (++*turns % 1024 == 0) sched_yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* ---- 8 bytes ---- */

static inline void wait_for(_Atomic uint64_t *word, uint64_t value)
{
    unsigned turns = 0;
    while (atomic_load_explicit(word, memory_order_acquire) != value) relax(&turns);
}

/* Words on lines of one page, there and back; each turn has another page, because the way to a line depends on its
 * address. */
enum { PLACES = 64, WORDS = PAGE / sizeof(uint64_t), BACK = 2 * LINE / sizeof(uint64_t) };

static void bare_turn(_Atomic uint64_t *words, bool answers, int turn)
{
    _Atomic uint64_t *there = words + turn % PLACES * WORDS, *back = there + BACK;
    uint64_t n = (uint64_t)(turn / PLACES) * SMALL_ROUNDS;
    for (int i = 0; i < SMALL_ROUNDS; i++) {
        n++;
        if (answers) wait_for(there, n);
        atomic_store_explicit(answers ? back : there, n, memory_order_release);
        if (!answers) wait_for(back, n);
    }
}

static void send_all(psmFifo *fifo, const uint8_t *data, size_t bytes)
{
    unsigned turns = 0;
    while (bytes > 0) {
        size_t n = psmFifoTrySend(fifo, data, bytes);
        data += n;
        bytes -= n;
        if (n == 0) relax(&turns);
    }
}

static void receive_all(psmFifo *fifo, uint8_t *data, size_t bytes)
{
    unsigned turns = 0;
    while (bytes > 0) {
        size_t n = psmFifoTryReceive(fifo, data, bytes);
        if (n == SIZE_MAX) die("psmFifoTryReceive");
        data += n;
        bytes -= n;
        if (n == 0) relax(&turns);
    }
}

static psmFifo *make(uint32_t slot_bytes)
{
    psmFifo *fifo;
    if (psmFifoCreate(PSM_SHARE_MEMFD, SLOTS, slot_bytes, &fifo) < 0) die("psmFifoCreate");
    return fifo;
}

static psmFifo *attach(const psmFifo *fifo, uint32_t slot_bytes)
{
    struct psm_share share;
    psmFifo *mine;
    int fd;
    psmFifoShare(fifo, &share, &fd);
    if (psmFifoAttach(&share, fd, SLOTS, slot_bytes, &mine) < 0) die("psmFifoAttach");
    return mine;
}

static void fifo_turn(psmFifo *out, psmFifo *in, bool answers, int turn)
{
    for (int i = 0; i < SMALL_ROUNDS; i++) {
        uint64_t sent = (uint64_t)turn << 32 | (unsigned)i, word = sent;
        if (!answers) send_all(out, (uint8_t *)&sent, SMALL);
        receive_all(in, (uint8_t *)&word, SMALL);
        if (word != sent) die("another word came");
        if (answers) send_all(out, (uint8_t *)&word, SMALL);
    }
}

static void small(int turns)
{
    psmFifo *there = make(SMALL), *back = make(SMALL);
    _Atomic uint64_t *words = shared(PLACES * PAGE);
    bool answers = other() == 0;
    psmFifo *out = answers ? attach(back, SMALL) : there, *in = answers ? attach(there, SMALL) : back;
    for (int turn = 0; turn < turns; turn++) {
        double begin = now();
        bare_turn(words, answers, turn);
        double middle = now();
        fifo_turn(out, in, answers, turn);
        if (answers) continue;
        report("fifo", (now() - middle) / SMALL_ROUNDS / 2);
        report("bare", (middle - begin) / SMALL_ROUNDS / 2);
    }
    if (answers) _exit(0);
    psmFifoClose(there);
    psmFifoClose(back);
}

/* ---- many bytes ---- */

/* What a FIFO is at least: slots in a memfd, a head and a tail. */
struct bare_fifo {
    _Alignas(LINE) _Atomic uint64_t head;
    _Alignas(LINE) _Atomic uint64_t tail;
    _Alignas(4096) uint8_t slots[SLOTS][SLOT];
};

static void bare_send(struct bare_fifo *fifo, uint64_t *step, size_t slot, const uint8_t *data, size_t bytes)
{
    uint8_t *slots = fifo->slots[0];
    for (size_t at = 0; at < bytes; at += slot) {
        unsigned turns = 0;
        while (atomic_load_explicit(&fifo->tail, memory_order_acquire) + SLOTS <= *step) relax(&turns);
        memcpy(slots + *step % SLOTS * slot, data + at, bytes - at < slot ? bytes - at : slot);
        atomic_store_explicit(&fifo->head, ++*step, memory_order_release);
    }
}

static void bare_receive(struct bare_fifo *fifo, uint64_t *step, size_t slot, uint8_t *data, size_t bytes)
{
    const uint8_t *slots = fifo->slots[0];
    for (size_t at = 0; at < bytes; at += slot) {
        unsigned turns = 0;
        while (atomic_load_explicit(&fifo->head, memory_order_acquire) <= *step) relax(&turns);
        memcpy(data + at, slots + *step % SLOTS * slot, bytes - at < slot ? bytes - at : slot);
        atomic_store_explicit(&fifo->tail, ++*step, memory_order_release);
    }
}

static uint8_t *buffer(size_t bytes, int value)
{
    uint8_t *at = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!at) die("aligned_alloc");
    memset(at, value, bytes);
    return at;
}

static void check(const char *what, const uint8_t *data, size_t bytes, int value)
{
    for (size_t i = 0; i < bytes; i += 4096)
        if (data[i] != value || data[bytes - 1] != value) die(what);
}

/* The parent asks for each turn by a word in the page, begins it when the child answers, and has the bytes at its end.
 */
struct page {
    _Alignas(LINE) _Atomic uint64_t ask;
    _Alignas(LINE) _Atomic uint64_t ready;
    _Alignas(LINE) _Atomic uint64_t vm_at;
};

/* One of the ways: what the child sends by, and the parent receives by. */
static const struct way {
    const char *name;
    bool bare;
    uint32_t slot;
} ways[] = {{"fifo", false, SLOT}, {"bare-fifo", true, SLOT}, {"fifo-128", false, LESS}, {"bare-fifo-128", true, LESS}};
enum { WAYS = sizeof ways / sizeof *ways };

/* Each round begins with another way: what came before a way must not always be the same. */
static int way_of(uint64_t asked)
{
    uint64_t before = asked - 1;
    return (int)((before + before / WAYS) % WAYS);
}

static void send_for_ever(struct page *page, psmFifo *const *fifos, struct bare_fifo *plain, size_t bytes)
{
    psmFifo *out[WAYS] = {NULL};
    uint64_t step[WAYS] = {0}, asked = 0;
    for (int i = 0; i < WAYS; i++)
        if (!ways[i].bare) out[i] = attach(fifos[i], ways[i].slot);
    uint8_t *data = buffer(bytes, 7);
    atomic_store(&page->vm_at, (uint64_t)(uintptr_t)data);
    for (;;) {
        wait_for(&page->ask, ++asked);
        int i = way_of(asked);
        atomic_store(&page->ready, asked);
        if (ways[i].bare)
            bare_send(&plain[i], &step[i], ways[i].slot, data, bytes);
        else
            send_all(out[i], data, bytes);
    }
}

static void bandwidth(size_t bytes, int turns)
{
    psmFifo *fifos[WAYS] = {NULL};
    struct bare_fifo *plain = shared(WAYS * sizeof *plain); /* those of our FIFOs stay untouched */
    struct page *page = shared(sizeof *page);
    uint64_t step[WAYS] = {0}, asked = 0;
    for (int i = 0; i < WAYS; i++)
        if (!ways[i].bare) fifos[i] = make(ways[i].slot);
    pid_t child = other();
    if (child == 0) send_for_ever(page, fifos, plain, bytes);
    uint8_t *in = buffer(bytes, 1), *own = buffer(bytes, 7);
    while (atomic_load(&page->vm_at) == 0) sched_yield();
    for (int turn = -1; turn < turns; turn++) { /* the first one is not counted */
        double begin = now(), end;
        memcpy(in, own, bytes);
        end = now();
        if (turn >= 0) report("memcpy", end - begin);
        for (int n = 0; n < WAYS; n++) {
            int i = way_of(++asked);
            memset(in, 0, bytes);
            atomic_store(&page->ask, asked);
            wait_for(&page->ready, asked);
            begin = now();
            if (ways[i].bare)
                bare_receive(&plain[i], &step[i], ways[i].slot, in, bytes);
            else
                receive_all(fifos[i], in, bytes);
            end = now();
            check(ways[i].name, in, bytes, 7);
            if (turn >= 0) report(ways[i].name, end - begin);
        }
        struct iovec to = {in, bytes}, from = {(void *)(uintptr_t)atomic_load(&page->vm_at), bytes};
        begin = now();
        if (process_vm_readv(child, &to, 1, &from, 1, 0) != (ssize_t)bytes) continue; /* not allowed everywhere */
        end = now();
        if (turn >= 0) report("process_vm_readv", end - begin);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    for (int i = 0; i < WAYS; i++) psmFifoClose(fifos[i]);
    free(in);
    free(own);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (argc == 3 && strcmp(what, "small") == 0)
        small(atoi(argv[2]));
    else if (argc == 4 && strcmp(what, "bandwidth") == 0)
        bandwidth(strtoull(argv[2], NULL, 10), atoi(argv[3]));
    else
        return 2;
    return 0;
}
