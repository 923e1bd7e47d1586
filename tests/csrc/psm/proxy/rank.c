/* A rank that obeys: commands on stdin, an answer "ok ..." or "err STATUS|errno|rank|peer|opId|stage|text" on stdout
 * for each. Its transport 0 echoes, fails, waits or fetches descriptors as the request says. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base.h"
#include "psm/psm_host_ops.h"
#include "psm/psm_launch.h"

enum mode { ECHO, FAIL, NEVER, FETCH, SILENT_FAIL };
struct order {
    uint32_t mode, turns; /* ECHO: how often it is not done first */
    uint64_t value, key;  /* FETCH: rank and id */
};
struct reply {
    uint64_t value, size;
};
struct resource {
    void *fetch;
    uint64_t key;
    uint32_t turns;
    uint64_t steps_done;
};

static psmProxyState *state;
static _Atomic int freed, steps;
static struct psmProxyAddress addresses[64];
static int nranks;

static psm_status complain(void)
{
    const struct psm_error *e = psm_last_error();
    printf("err %s|%d|%d|%d|%d|%" PRIx64 "|%s|%s\n", psm_status_name(e->status), e->sys_errno, e->cuda, e->rank,
           e->peer, e->op_id, e->stage, e->text);
    return e->status;
}

/* ---- the transport ---- */

/* Turns of an order that is asked again and again: by its address, which stays. */
static struct {
    const void *req;
    uint32_t turns;
} waiting[1 << 16];

static uint32_t turn(const void *req)
{
    size_t at = ((uintptr_t)req >> 4) * 2654435761u % (1 << 16);
    while (waiting[at].req && waiting[at].req != req) at = (at + 1) % (1 << 16);
    waiting[at].req = req;
    return waiting[at].turns++;
}
static void forget(const void *req)
{
    size_t at = ((uintptr_t)req >> 4) * 2654435761u % (1 << 16);
    while (waiting[at].req && waiting[at].req != req) at = (at + 1) % (1 << 16);
    waiting[at].turns = 0; /* the place stays taken */
}

static psm_status obey(psmProxyConnection *connection, psmProxyState *own, const void *req, int req_size, void *resp,
                       int resp_size, int *done)
{
    struct order order;
    struct reply reply = {0, (uint64_t)req_size};
    (void)own;
    if (!connection->transportResources) connection->transportResources = calloc(1, sizeof(struct resource));
    struct resource *mine = connection->transportResources;
    if (!mine || req_size < (int)sizeof order || resp_size < (int)sizeof reply) return PSM_ERR_INVALID;
    memcpy(&order, req, sizeof order);
    reply.value = order.value * 2 + 1;
    switch (order.mode) {
    case ECHO:
        if (order.turns && turn(req) < order.turns) {
            *done = 0;
            return PSM_OK;
        }
        if (order.turns) forget(req);
        break;
    case NEVER:
        *done = 0;
        return PSM_OK;
    case FAIL: {
        psmProxyConnector none = {.state = NULL};
        psmOpId id;
        psmProxyCallAsync(&none, psmProxyMsgSetup, NULL, 0, 0, &id); /* leaves a text behind */
        return PSM_ERR_INVALID;
    }
    case SILENT_FAIL:
        return PSM_ERR_REFUSED;
    case FETCH: {
        const struct psm_host *host = connection->host;
        int fd = -1;
        psm_status status = PSM_OK;
        if (!mine->fetch) status = host->ops->fetch_start(host->self, (int)order.value, order.key, &mine->fetch);
        if (status < 0) return status;
        status = host->ops->fetch_poll(host->self, mine->fetch, &fd);
        if (status == PSM_IN_PROGRESS) {
            *done = 0;
            return PSM_OK;
        }
        mine->fetch = NULL;
        if (status < 0) return status;
        struct stat about;
        fstat(fd, &about);
        close(fd);
        reply.value = about.st_ino;
        break;
    }
    }
    memcpy(resp, &reply, sizeof reply);
    return PSM_OK;
}

static psm_status undo(psmProxyConnection *connection, psmProxyState *own, const void *req, int req_size, int *done)
{
    (void)connection, (void)own, (void)req, (void)req_size, (void)done;
    return PSM_OK;
}

static psm_status let_go(psmProxyConnection *connection, psmProxyState *own)
{
    struct resource *mine = connection->transportResources;
    (void)own;
    if (mine && mine->fetch) connection->host->ops->fetch_cancel(connection->host->self, mine->fetch);
    free(mine);
    connection->transportResources = NULL;
    atomic_fetch_add(&freed, 1);
    return PSM_OK;
}

/* nbytes: how many steps. sendbuff: where the order of the ends is noted. nbytes 0: never ends. */
static psm_status progress(psmProxyState *own, struct psmProxyArgs *args)
{
    (void)own;
    if (args->state == psmProxyOpReady) {
        for (int i = 0; i < args->nsubs; i++) args->subs[i].nsteps = args->subs[i].nbytes;
        args->state = psmProxyOpProgress;
    }
    int ended = 0;
    for (int i = 0; i < args->nsubs; i++) {
        struct psmProxySubArgs *sub = &args->subs[i];
        if (sub->reg) return PSM_ERR_CUDA;
        if (sub->nsteps && sub->done < sub->nsteps) {
            sub->done++;
            args->idle = 0;
            atomic_fetch_add(&steps, 1);
        }
        ended += sub->nsteps && sub->done == sub->nsteps;
    }
    if (ended == args->nsubs) args->state = psmProxyOpNone;
    return PSM_OK;
}

static const struct psmTransportComm comm = {.proxySetup = obey,
                                             .proxyConnect = obey,
                                             .proxyFree = let_go,
                                             .proxyProgress = progress,
                                             .proxyRegister = obey,
                                             .proxyDeregister = undo};

/* ---- commands ---- */

enum { SLOTS = 4096 };
static psmProxyConnector slots[SLOTS];

static int entries(const char *folder)
{
    int n = 0;
    DIR *d = opendir(folder);
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n - (folder[strlen(folder) - 1] == 'd' ? 3 : 2); /* ., .., and the folder's own descriptor */
}

static uint64_t seed = 1;
static uint64_t draw(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

/* `count` calls in flight at a time, `total` in all, over the slots; fetched in random order. */
static void storm(int total, int window, int nslots, uint64_t start)
{
    struct {
        psmOpId id;
        int slot;
        uint64_t value, size;
    } *open = calloc((size_t)window, sizeof *open);
    int begun = 0, ended = 0, live = 0, wrong = 0;
    seed = start | 1;
    while (ended < total) {
        while (live < window && begun < total) {
            uint8_t bytes[1024];
            struct order order = {ECHO, (uint32_t)(draw() % 4 ? 0 : draw() % 6), draw() >> 2, 0};
            size_t size = sizeof order + draw() % (sizeof bytes - sizeof order);
            memset(bytes, 0x5a, sizeof bytes);
            memcpy(bytes, &order, sizeof order);
            open[live].slot = (int)(draw() % (uint64_t)nslots);
            open[live].value = order.value;
            open[live].size = size;
            if (psmProxyCallAsync(&slots[open[live].slot], psmProxyMsgSetup, bytes, (int)size, sizeof(struct reply),
                                  &open[live].id) < 0) {
                complain();
                free(open);
                return;
            }
            live++;
            begun++;
        }
        int at = (int)(draw() % (uint64_t)live);
        struct reply reply;
        psm_status status = psmPollProxyResponse(&slots[open[at].slot], &reply, sizeof reply, open[at].id);
        if (status == PSM_IN_PROGRESS) continue;
        if (status < 0) {
            complain();
            free(open);
            return;
        }
        wrong += reply.value != open[at].value * 2 + 1 || reply.size != open[at].size;
        open[at] = open[--live];
        ended++;
    }
    free(open);
    printf("ok %d\n", wrong);
}

struct many {
    int slot, calls, wrong;
};
static void *call_many(void *argument)
{
    struct many *m = argument;
    for (int i = 0; i < m->calls; i++) {
        struct order order = {ECHO, (uint32_t)(i % 7 == 0), (uint64_t)i, 0};
        struct reply reply = {0, 0};
        if (psmProxyCallBlocking(&slots[m->slot], psmProxyMsgSetup, &order, sizeof order, &reply, sizeof reply) < 0 ||
            reply.value != order.value * 2 + 1)
            m->wrong++;
    }
    return NULL;
}

static void threads(int count, int calls, int nslots)
{
    pthread_t ids[64];
    struct many jobs[64];
    int wrong = 0;
    for (int i = 0; i < count; i++) {
        jobs[i] = (struct many){i % nslots, calls, 0};
        pthread_create(&ids[i], NULL, call_many, &jobs[i]);
    }
    for (int i = 0; i < count; i++) {
        pthread_join(ids[i], NULL);
        wrong += jobs[i].wrong;
    }
    printf("ok %d\n", wrong);
}

/* Operations on `nslots` connections, `rounds` each. kind: 0 ends, 1 fails, 2 never ends, 3 is not posted, 4 waits for
 * its stream. */
static struct psmSyncCondition conditions[64];
static void operations(int nslots, int rounds, int kind)
{
    for (int round = 0; round < rounds; round++) {
        struct psmSyncCondition *sync = &conditions[round % 64];
        memset((void *)sync, 0, sizeof *sync);
        sync->proxyOpCount = nslots;
        sync->proxyReadyEvent = kind != 4;
        for (int i = 0; i < nslots; i++) {
            struct psmProxyOp op = {.connection = slots[i].connection,
                                    .opCount = (uint64_t)round,
                                    .nbytes = kind == 2 ? 0 : (uint64_t)(1 + (i + round) % 5),
                                    .peer = slots[i].rank,
                                    .reg = kind == 1,
                                    .sync = sync};
            if (psmProxySaveOp(state, &op) < 0) {
                complain();
                return;
            }
        }
        if (kind != 3) psmProxyStart(state);
    }
    printf("ok\n");
}

static void operations_wait(int rounds)
{
    int failed = 0;
    for (int i = 0; i < rounds; i++) {
        /* the test has the deadline */
        while (__atomic_load_n(&conditions[i].proxyOpCount, __ATOMIC_ACQUIRE) > 0) usleep(200);
        failed = failed ? failed : -(int)conditions[i].failed;
    }
    printf("ok %d %s\n", atomic_load(&steps), psm_status_name((psm_status)failed));
}

static void give_hex(const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) printf("%02x", ((const uint8_t *)bytes)[i]);
}

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if ((call) < 0)                                                                                                \
            complain();                                                                                                \
        else                                                                                                           \
            printf("ok\n");                                                                                            \
    } while (0)

static void init(int rank, int ranks)
{
    struct psmProxyOptions options = {.size = sizeof options, .rank = rank, .nranks = ranks, .device = -1};
    options.transports[0][0] = options.transports[0][1] = &comm;
    nranks = ranks;
    if (psmProxyInit(&state, &options) < 0) {
        complain();
    } else {
        struct psmProxyAddress own;
        psmProxyAddress(state, &own);
        printf("ok ");
        give_hex(&own, sizeof own);
        printf("\n");
    }
}

/* Calls of the proxy. The comments say what follows each word. */
static bool call_command(const char *word, const long long *a)
{
    if (!strcmp(word, "call")) { /* slot type mode turns value key */
        struct order order = {(uint32_t)a[2], (uint32_t)a[3], (uint64_t)a[4], (uint64_t)a[5]};
        struct reply reply = {0, 0};
        if (psmProxyCallBlocking(&slots[a[0]], (int)a[1], &order, sizeof order, &reply, sizeof reply) < 0)
            complain();
        else
            printf("ok %" PRIu64 " %" PRIu64 "\n", reply.value, reply.size);
    } else if (!strcmp(word, "begin")) { /* slot mode turns value key: an async call */
        struct order order = {(uint32_t)a[1], (uint32_t)a[2], (uint64_t)a[3], (uint64_t)a[4]};
        psmOpId id = 0;
        if (psmProxyCallAsync(&slots[a[0]], psmProxyMsgSetup, &order, sizeof order, sizeof(struct reply), &id) < 0)
            complain();
        else
            printf("ok %#" PRIx64 "\n", id);
    } else if (!strcmp(word, "poll")) { /* slot id */
        struct reply reply = {0, 0};
        psm_status status = psmPollProxyResponse(&slots[a[0]], &reply, sizeof reply, (uint64_t)a[1]);
        if (status < 0)
            complain();
        else
            printf("ok %s %" PRIu64 "\n", psm_status_name(status), reply.value);
    } else {
        return false;
    }
    return true;
}

/* Descriptors that are offered, fetched and given. */
static bool fd_command(const char *word, const long long *a)
{
    if (!strcmp(word, "offer")) { /* id: a memfd; its inode */
        int fd = memfd_create("offered", MFD_CLOEXEC);
        struct stat about;
        fstat(fd, &about);
        if (psmProxyOfferFd(state, (uint64_t)a[0], fd) < 0)
            complain();
        else
            printf("ok %llu %d\n", (unsigned long long)about.st_ino, fd);
    } else if (!strcmp(word, "withdraw")) { /* id fd */
        if (psmProxyWithdrawFd(state, (uint64_t)a[0]) < 0)
            complain();
        else
            printf("ok %d\n", close((int)a[1]));
    } else if (!strcmp(word, "getfd")) { /* slot id times */
        struct stat about = {0};
        psm_status status = PSM_OK;
        for (int i = 0; i < (int)a[2] && status == PSM_OK; i++) {
            int fd = -1;
            status = psmProxyClientGetFdBlocking(&slots[a[0]], (uint64_t)a[1], &fd);
            if (status == PSM_OK) {
                fstat(fd, &about);
                close(fd);
            }
        }
        if (status < 0)
            complain();
        else
            printf("ok %llu\n", (unsigned long long)about.st_ino);
    } else if (!strcmp(word, "queryfd")) { /* slot times: gives memfds; the numbers, and the last one's inode */
        struct stat about = {0};
        int remote = -1;
        psm_status status = PSM_OK;
        for (int i = 0; i < (int)a[1] && status == PSM_OK; i++) {
            int fd = memfd_create("given", MFD_CLOEXEC);
            fstat(fd, &about);
            status = psmProxyClientQueryFdBlocking(&slots[a[0]], fd, &remote);
            close(fd);
        }
        if (status < 0)
            complain();
        else
            printf("ok %d %llu\n", remote, (unsigned long long)about.st_ino);
    } else if (!strcmp(word, "take")) {
        int fd = -1;
        struct stat about = {0};
        if (psmProxyTakeFd(state, (int)a[0], &fd) < 0) {
            complain();
        } else {
            fstat(fd, &about);
            close(fd);
            printf("ok %llu\n", (unsigned long long)about.st_ino);
        }
    } else {
        return false;
    }
    return true;
}

static int command(char *line)
{
    char *rest = NULL, *word = strtok_r(line, " \n", &rest);
    long long a[6] = {0};
    if (!word) return 1;
    char *text = strdup(rest ? rest : ""), *at = text;
    text[strcspn(text, "\n")] = 0;
    for (int i = 0; i < 6; i++) {
        char *end;
        a[i] = (long long)strtoull(at, &end, 0);
        if (end == at) break;
        at = end;
    }
    if (call_command(word, a) || fd_command(word, a)) {
        /* done */
    } else if (!strcmp(word, "init")) {
        init((int)a[0], (int)a[1]);
    } else if (!strcmp(word, "create")) {
        TRY(psmProxyCreate(state));
    } else if (!strcmp(word, "addresses")) {
        for (int i = 0; i < nranks; i++)
            for (size_t k = 0; k < sizeof *addresses; k++)
                sscanf(text + (size_t)i * (2 * sizeof *addresses + 1) + 2 * k, "%2hhx", (uint8_t *)&addresses[i] + k);
        TRY(psmProxySetAddresses(state, addresses, nranks));
    } else if (!strcmp(word, "connect")) { /* slot rank send */
        TRY(psmProxyConnect(state, 0, (int)a[2], &addresses[a[1]], &slots[a[0]]));
    } else if (!strcmp(word, "disconnect")) {
        TRY(psmProxyDisconnect(&slots[a[0]]));
    } else if (!strcmp(word, "storm")) { /* total window slots seed */
        storm((int)a[0], (int)a[1], (int)a[2], (uint64_t)a[3]);
    } else if (!strcmp(word, "threads")) { /* count calls slots */
        threads((int)a[0], (int)a[1], (int)a[2]);
    } else if (!strcmp(word, "ops")) { /* slots rounds kind */
        operations((int)a[0], (int)a[1], (int)a[2]);
    } else if (!strcmp(word, "wait")) {
        operations_wait((int)a[0]);
    } else if (!strcmp(word, "abort")) {
        TRY(psmProxyAbort(state, text));
    } else if (!strcmp(word, "async")) {
        TRY(psmProxyAsyncError(state));
    } else if (!strcmp(word, "alive")) {
        printf("ok %d\n", psmProxyPeerAlive(state, (int)a[0]));
    } else if (!strcmp(word, "count")) {
        struct psmProxyCounters c = {.size = sizeof c};
        psmProxyCount(state, &c);
        printf("ok calls=%" PRIu64 " served=%" PRIu64 " retried=%" PRIu64 " late=%" PRIu64 " refused=%" PRIu64
               " resent=%" PRIu64 " connections=%" PRIu64 " peers=%" PRIu64 " ops=%" PRIu64 " given=%" PRIu64
               " freed=%d\n",
               c.calls, c.served, c.retried, c.late, c.refused, c.resent, c.connections, c.peers, c.ops, c.fds_sent,
               atomic_load(&freed));
    } else if (!strcmp(word, "held")) {
        printf("ok %d %d\n", entries("/proc/self/fd"), entries("/proc/self/task"));
    } else if (!strcmp(word, "cpu")) { /* nanoseconds of the whole process so far */
        struct timespec t;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
        printf("ok %lld\n", (long long)t.tv_sec * 1000000000 + t.tv_nsec);
    } else if (!strcmp(word, "user")) { /* become another one */
        printf("ok %d\n", setgid((gid_t)a[0]) || setuid((uid_t)a[0]));
    } else if (!strcmp(word, "stop")) {
        TRY(psmProxyStop(state));
    } else if (!strcmp(word, "destroy")) {
        psm_status status = psmProxyDestroy(state);
        state = NULL;
        TRY(status);
    } else if (!strcmp(word, "exit")) {
        free(text);
        return 0;
    } else {
        printf("err unknown command %s\n", word);
    }
    free(text);
    return 1;
}

int main(void)
{
    static char line[65536];
    while (fgets(line, sizeof line, stdin)) {
        if (!command(line)) break;
        fflush(stdout);
    }
    psmProxyDestroy(state);
    return 0;
}
