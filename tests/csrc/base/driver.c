/* A process for the tests of csrc/base: does what its arguments say. Lines on standard output answer. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fault.h"
#include "psm_messages.h"
#include "record_format.h"

struct event {
    uint64_t handle;
    uint64_t check; /* ~handle: a record is whole when they agree */
    uint32_t count;
    uint8_t kind;
    char what[19];
};

static const struct psm_field fields[] = {
    PSM_FIELD(struct event, PSM_HEX64, handle), PSM_FIELD(struct event, PSM_HEX64, check),
    PSM_FIELD(struct event, PSM_U32, count),    PSM_FIELD(struct event, PSM_U8, kind),
    PSM_FIELD(struct event, PSM_STR, what),
};
static const struct psm_record_message messages[] = {
    {"test.info", PSM_LEVEL_INFO, "event {handle:ptr} count {count:uint} what {what:word}"},
    {"test.warn", PSM_LEVEL_WARN, "bad event {handle:hex}: {what:rest}"},
};
static const struct psm_schema ring_schema = {"test.ring", 3, sizeof(struct event), fields, 5, messages, 2, 3};
static const struct psm_schema table_schema = {"test.table", 1, sizeof(struct event), fields, 5, messages, 1, -1};

PSM_FAULT_SITE(alpha, "test.alpha", "A call that can fail.");
PSM_FAULT_SITE_OF(beta, "test.beta", "Something that moves bytes.", PSM_FAULT_CAN_ALL);

static void fill(struct event *e, uint64_t handle, unsigned kind, const char *what)
{
    if (!e) return; /* no record, or no room */
    memset(e, 0, sizeof *e);
    e->handle = handle;
    e->check = ~handle;
    e->count = (uint32_t)handle;
    e->kind = (uint8_t)kind;
    strncpy(e->what, what, sizeof e->what);
}

static void say_ready(void)
{
    const char *path = psm_record_path(psm_record_self());
    printf("%s\n", path ? path : "(null)");
    fflush(stdout);
}

static void wait_for_end(void)
{
    char c;
    while (read(STDIN_FILENO, &c, 1) > 0) continue;
}

/* ---- rings ---- */

static psm_section *shared;
static _Atomic bool stop;

static void *write_ring(void *argument)
{
    uint64_t thread = (uint64_t)(uintptr_t)argument, limit = thread >> 32;
    thread &= UINT32_MAX;
    for (uint64_t i = 0; (limit == 0 || i < limit) && !atomic_load(&stop); i++) {
        uint64_t ticket;
        struct event *e = psm_ring_begin(shared, &ticket);
        if (!e) continue;
        fill(e, thread << 32 | i, 0, "loop");
        psm_ring_commit(shared, ticket);
    }
    return NULL;
}

/* ring CAPACITY THREADS COUNT: COUNT 0 writes until standard input ends. */
static int ring(char **argument)
{
    shared = psm_record_section(psm_record_self(), &ring_schema, PSM_RING, (uint32_t)atoi(argument[0]));
    int threads = atoi(argument[1]);
    uint64_t count = strtoull(argument[2], NULL, 10);
    pthread_t thread[16];
    for (int i = 0; i < threads; i++)
        pthread_create(&thread[i], NULL, write_ring, (void *)(uintptr_t)(count << 32 | (uint64_t)i));
    if (!count) {
        say_ready();
        wait_for_end();
        atomic_store(&stop, true);
    }
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    if (count) {
        say_ready();
        wait_for_end();
    }
    printf("lost %" PRIu64 "\n", psm_section_lost(shared));
    return 0;
}

static void *write_table(void *argument)
{
    uint64_t thread = (uint64_t)(uintptr_t)argument;
    uint32_t slot[8];
    for (uint64_t i = 0; i < 20000; i++) {
        struct event *e = psm_table_claim(shared, &slot[i % 8]);
        if (!e) abort(); /* the test gives room for all */
        fill(e, thread << 32 | i, 0, "live");
        psm_table_publish(shared, slot[i % 8]);
        if (i >= 7) psm_table_release(shared, slot[(i + 1) % 8]);
    }
    return NULL;
}

/* A table with room for `each` rows a thread, which that many threads write. */
static int with_threads(const char *number, uint32_t each, void *write(void *))
{
    int threads = atoi(number);
    shared = psm_record_section(psm_record_self(), &table_schema, PSM_TABLE, (uint32_t)threads * each);
    pthread_t thread[16];
    for (int i = 0; i < threads; i++) pthread_create(&thread[i], NULL, write, (void *)(uintptr_t)i);
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    say_ready();
    wait_for_end();
    return 0;
}

/* table THREADS: each claims and frees; 7 of each stay. */
static int table(char **argument)
{
    return with_threads(argument[0], 8, write_table);
}

static _Atomic unsigned strangers;
static void *write_aside(void *argument)
{
    uint64_t thread = (uint64_t)(uintptr_t)argument, last = 0;
    uint32_t slot, other;
    for (uint64_t i = 1; i <= 20000; i++) {
        struct event *e = i > 1 ? psm_table_claim_aside(shared, slot, i, 2, 3) : psm_table_claim(shared, &slot);
        if (!e) abort(); /* the room is this thread's */
        if (i > 1 && e->handle != last) atomic_fetch_add(&strangers, 1);
        fill(e, last = thread << 32 | i, 0, "aside");
        psm_table_publish(shared, slot);
        if (i == 20000) break;
        psm_table_set_aside(shared, slot);
        if (psm_table_claim(shared, &other)) { /* somebody else's room is never this */
            if (other == slot) atomic_fetch_add(&strangers, 1);
            psm_table_release(shared, other);
        }
    }
    return NULL;
}

/* aside THREADS: each writes its own slot again and again, and sets it aside in between, when it claims and frees
 * another. */
static int aside(char **argument)
{
    with_threads(argument[0], 2, write_aside);
    printf("strangers %u\n", atomic_load(&strangers));
    return 0;
}

/* hidden: what was set aside is not read, nor is it given away; what is taken back is what it was. */
static int hidden(void)
{
    psm_section *s = psm_record_section(psm_record_self(), &table_schema, PSM_TABLE, 2);
    uint32_t mine, other;
    fill(psm_table_claim(s, &mine), 0xa51de, 0, "mine");
    psm_table_publish(s, mine);
    psm_table_set_aside(s, mine);
    fill(psm_table_claim(s, &other), 0xbeef, 0, "other");
    psm_table_publish(s, other);
    say_ready();
    char c;
    if (read(STDIN_FILENO, &c, 1) != 1) return 1;
    printf("%d %d\n", other != mine, psm_table_claim(s, &other) != NULL);
    const struct event *e = psm_table_claim_aside(s, mine, 77, 5, 6);
    psm_table_publish(s, mine);
    printf("%d\n", e && e->handle == 0xa51de);
    fflush(stdout);
    wait_for_end();
    return 0;
}

/* full: a table of two. */
static int full(void)
{
    psm_section *s = psm_record_section(psm_record_self(), &table_schema, PSM_TABLE, 2);
    uint32_t slot[3];
    void *got[3];
    for (int i = 0; i < 3; i++) got[i] = psm_table_claim(s, &slot[i]);
    printf("%d %d %d lost %" PRIu64 "\n", got[0] != NULL, got[1] != NULL, got[2] != NULL, psm_section_lost(s));
    psm_table_publish(s, slot[0]);
    psm_table_release(s, slot[0]);
    printf("%d\n", psm_table_claim(s, &slot[2]) != NULL && slot[2] == slot[0]);
    return 0;
}

/* scene KILL: one record of each kind, a table with a live, a released, an updated and a claimed slot; then wait, or
 * die. */
static int scene(char **argument)
{
    psm_section *s = psm_record_section(psm_record_self(), &ring_schema, PSM_RING, 8);
    psm_section *t = psm_record_section(psm_record_self(), &table_schema, PSM_TABLE, 8);
    const char *const what[] = {"first", "tab\there NCCL x", ""};
    uint64_t ticket;
    psm_log_set_device(5);
    for (unsigned i = 0; i < 3; i++) {
        fill(psm_ring_begin(s, &ticket), 0xabc0 + i, i, what[i]);
        psm_ring_commit(s, ticket);
    }
    uint32_t slot[4] = {0};
    for (unsigned i = 0; i < 4; i++) fill(psm_table_claim(t, &slot[i]), 0xd000 + i, 0, "live");
    for (unsigned i = 0; i < 3; i++) psm_table_publish(t, slot[i]);
    psm_table_release(t, slot[0]);
    struct event *e = psm_table_update(t, slot[1]);
    if (e) e->count = 77;
    psm_table_publish(t, slot[1]);
    psm_table_update(t, slot[2]);
    psm_ring_begin(s, &ticket);
    say_ready();
    if (strcmp(argument[0], "kill") == 0) raise(SIGKILL);
    if (strcmp(argument[0], "_exit") == 0) _exit(0);
    if (strcmp(argument[0], "wait") == 0) wait_for_end();
    return 0;
}

/* forked: the child writes to the parent's section, then to one of its own; the parent waits. */
static int forked(void)
{
    psm_section *s = psm_record_section(psm_record_self(), &ring_schema, PSM_RING, 8);
    uint64_t ticket;
    fill(psm_ring_begin(s, &ticket), 1, 0, "parent");
    psm_ring_commit(s, ticket);
    say_ready();
    if (fork() == 0) {
        printf("%d\n", psm_ring_begin(s, &ticket) != NULL);
        psm_section *own = psm_record_section(psm_record_self(), &ring_schema, PSM_RING, 8);
        fill(psm_ring_begin(own, &ticket), 2, 0, "child");
        psm_ring_commit(own, ticket);
        const struct psm_proc *self = psm_proc_self();
        printf("%d %d %d\n", self->pid == getpid(), psm_tid() == getpid(), self->tag != 0);
        say_ready();
        raise(SIGKILL);
    }
    wait(NULL);
    wait_for_end();
    return 0;
}

/* ---- further records ---- */

/* A row by hand, as who manages a sparse table does. */
static void put_row(psm_section *s, uint32_t slot, uint64_t handle)
{
    size_t size;
    unsigned char *rows = psm_section_rows(s, &size);
    if (!rows) return;
    struct rec_slot *at = (struct rec_slot *)(rows + slot * size);
    fill((struct event *)at->record, handle, 0, "row");
    atomic_store(&at->sequence, SLOT_LIVE);
}

static const char *path_of(psm_record *record)
{
    const char *path = psm_record_path(record);
    return path ? path : "(null)";
}

/* more SIZE COMMAND...: a further record with a sparse table of 100,000 rows, of which 2 are used; then end, keep,
 * kill, fork (the child writes to both), again (ends it, and makes another) or wait. */
static int more(char **argument)
{
    psm_record *r = psm_record_more(strtoull(argument[0], NULL, 10));
    psm_section *s = psm_record_sparse(r, &table_schema, 100000);
    printf("%s\n%d %d %d\n", path_of(r), psm_section_take(s, 0, 1), psm_section_take(s, 50000, 1000),
           psm_section_take(s, 99999, 2) != 0);
    put_row(s, 0, 1);
    put_row(s, 50999, 2);
    for (char **command = argument + 1; *command; command++) {
        if (strcmp(*command, "keep") == 0) psm_record_keep(r, true);
        if (strcmp(*command, "end") == 0) psm_record_end(r);
        if (strcmp(*command, "kill") == 0) raise(SIGKILL);
        if (strcmp(*command, "again") == 0) {
            psm_record *next = psm_record_more(strtoull(argument[0], NULL, 10));
            psm_section *t = psm_record_sparse(next, &table_schema, 100000);
            printf("%s %d\n", path_of(next), psm_section_take(t, 0, 1));
            put_row(t, 0, 3);
        }
        if (strcmp(*command, "fork") == 0 && fork() == 0) {
            put_row(s, 0, 99);
            printf("%d\n", psm_section_take(s, 0, 1) != 0);
            printf("%s\n", path_of(psm_record_more(1 << 16)));
            fflush(stdout);
            raise(SIGKILL);
        }
        if (strcmp(*command, "fork") == 0) wait(NULL);
        if (strcmp(*command, "wait") == 0) {
            fflush(stdout);
            wait_for_end();
        }
    }
    return 0;
}

static int print_slot(const struct psm_slot *slot, void *context)
{
    const struct event *e = slot->record;
    (void)context;
    printf("  %" PRIx64 " %u %s\n", e->handle, e->count, e->what);
    return 0;
}

static int print_view(const psm_view *view, void *context)
{
    static const char *const owners[] = {"alive", "dead", "unknown"};
    (void)context;
    printf("%s pid %d rank %d %s %d\n", psm_view_name(view), psm_view_proc(view)->pid, psm_view_proc(view)->rank,
           owners[psm_view_owner(view)], psm_view_clean_exit(view));
    psm_view_foreach(view, "test.table", 1, sizeof(struct event), print_slot, NULL);
    return 0;
}

/* ---- log ---- */

/* log STEP...: warn:TEXT info open:PATH (as NCCL opens its file) nccl:TEXT (NCCL prints) close (standard output) fork
 * device:N flush */
static int log_lines(char **step)
{
    FILE *file = NULL;
    for (; *step; step++) {
        char *text = strchr(*step, ':');
        if (text) *text++ = 0;
        if (strcmp(*step, "warn") == 0) psm_msg_record_unavailable("test", text);
        if (strcmp(*step, "info") == 0) psm_msg_record_process(2, 0, "test", "now");
        if (strcmp(*step, "open") == 0) {
            file = fopen(text, "w");
            setlinebuf(file);
        }
        if (strcmp(*step, "nccl") == 0) fprintf(file, "%s\n", text);
        if (strcmp(*step, "close") == 0) close(STDOUT_FILENO);
        if (strcmp(*step, "closeall") == 0)
            for (int fd = 3; fd < 64; fd++) close(fd);
        if (strcmp(*step, "device") == 0) psm_log_set_device(atoi(text));
        if (strcmp(*step, "env") == 0) putenv(text);
        if (strcmp(*step, "flush") == 0) psm_log_flush();
        if (strcmp(*step, "many") == 0)
            for (int i = 0; i < atoi(text); i++) psm_msg_record_process(i, 0, "test", "now");
        if (strcmp(*step, "fork") == 0) {
            if (fork() != 0) {
                wait(NULL);
                return 0;
            }
        }
    }
    return 0;
}

/* ---- faults ---- */

static bool resolve(const char *site, const char *name, int64_t *value)
{
    *value = 700;
    return strcmp(site, "test.alpha") == 0 && strcmp(name, "testErrorIllegal") == 0;
}

/* hits SITE COUNT RANK PEER OP [CANNOT]: the calls that are struck, with action and value. A site that is not in the
 * binary is made. */
static int hits(char **argument)
{
    static struct psm_site made;
    struct psm_site *site = &made;
    psm_site_init(&made, argument[0], "Made at run time.", PSM_FAULT_CAN_ALL);
    if (strcmp(argument[0], "test.alpha") == 0) site = &alpha;
    if (strcmp(argument[0], "test.beta") == 0) site = &beta;
    struct psm_fault_args args = {atoi(argument[2]),
                                  atoi(argument[3]),
                                  argument[4],
                                  NULL,
                                  argument[5] ? (uint32_t)strtoul(argument[5], NULL, 0) : 0,
                                  0};
    psm_fault_set_resolver(resolve);
    int count = atoi(argument[1]);
    for (int i = 1; i <= count; i++) {
        struct psm_fault fault;
        if (psm_fault_hit(site, &args, &fault))
            printf("%d %s %" PRId64 "\n", i, psm_fault_action_name(fault.action), fault.value);
    }
    return 0;
}

static volatile sig_atomic_t signals_seen;
static uint32_t flag;

static void count_signal(int number)
{
    (void)number;
    signals_seen++;
    if (write(STDOUT_FILENO, "signal\n", 7) != 7) _exit(9);
}

static void end_waits(int number)
{
    (void)number;
    psm_abort();
}

static void raise_flag(int number)
{
    (void)number;
    __atomic_store_n(&flag, 1, __ATOMIC_RELEASE);
}

/* act: one call of test.alpha. SIGUSR1 is counted, SIGUSR2 aborts, SIGHUP raises the caller's flag. */
static int act(void)
{
    signal(SIGUSR1, count_signal);
    signal(SIGUSR2, end_waits);
    signal(SIGHUP, raise_flag);
    struct psm_fault_args args = {3, PSM_FAULT_UNKNOWN, NULL, &flag, 0, 0};
    struct psm_fault fault;
    uint64_t begun = psm_clock_ns();
    int aborted = 0, struck = psm_fault_hit(&alpha, &args, &fault);
    if (struck) aborted = psm_fault_act_before(&fault);
    uint64_t worked = psm_clock_ns();
    if (struck) psm_fault_act_after(&fault);
    uint64_t done = psm_clock_ns();
    printf("struck %d aborted %d before %" PRIu64 " after %" PRIu64 " signals %d\n", struck, aborted, worked - begun,
           done - worked, (int)signals_seen);
    return 0;
}

int main(int count, char **argument)
{
    const char *command = count > 1 ? argument[1] : "";
    char **rest = argument + 2;
    if (strcmp(command, "ring") == 0) return ring(rest);
    if (strcmp(command, "table") == 0) return table(rest);
    if (strcmp(command, "aside") == 0) return aside(rest);
    if (strcmp(command, "hidden") == 0) return hidden();
    if (strcmp(command, "full") == 0) return full();
    if (strcmp(command, "scene") == 0) return scene(rest);
    if (strcmp(command, "forked") == 0) return forked();
    if (strcmp(command, "more") == 0) return more(rest);
    if (strcmp(command, "views") == 0) return psm_record_foreach_process(print_view, NULL);
    if (strcmp(command, "prune") == 0) return printf("%d\n", psm_record_prune()) < 0;
    if (strcmp(command, "log") == 0) return log_lines(rest);
    if (strcmp(command, "hits") == 0) return hits(rest);
    if (strcmp(command, "act") == 0) return act();
    fprintf(stderr, "driver: no command %s\n", command);
    return 2;
}
