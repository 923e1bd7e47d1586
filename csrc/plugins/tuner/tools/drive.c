/* psm_tuner_drive LIB VERSION [CHECK...]: calls a tuner as NCCL does and checks its behaviour. Prints one line of JSON
 * for each check, preceded by {"begin"}, which shows where a crash happened. The last line has a digest of all answers,
 * which must be the same in every process. psmkit/plugins/drive_tuner.py starts several and judges: the "kind" of a
 * failure says which class it has there (drive_tuner_checks.py).
 *
 * psm_tuner_drive LIB VERSION --ask: reads questions from standard input and answers each:
 *   init RANKS NODES DOMAINS | get N OP BYTES PIPE_OPS REGISTERED COLLNET NVLS ALGORITHM/PROTOCOL... | chunk N OP BYTES
 * A P | end N | time N OP BYTES CALLS */
#define _GNU_SOURCE
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "call.h"
#include "libc.h"
#include "rules.h"

static struct tuner tuner;
static uint64_t digest = 0xcbf29ce484222325u;
static char problem[400];
/* What is wrong, the least first. All but the last leave a job that works, at least with some releases or sizes. */
static const char *const kinds[] = {"skipped", "name", "end", "number", "unchosen", "adapter", "clamped", "contract"};
static const char *kind;

static const struct {
    size_t ranks, nodes;
    int domains;
} shapes[] = {{1, 1, 1}, {2, 1, 1}, {8, 1, 1}, {16, 2, 2}, {64, 8, 8}, {1000, 125, 125}, {4, 4, 1}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static int weight(const char *of)
{
    int at = (int)(sizeof kinds / sizeof *kinds);
    while (at-- && strcmp(kinds[at], of) != 0) continue;
    return at;
}

/* Keep what is wrong if nothing worse was found. Only "contract" ends a check: other kinds must not hide it. */
static __attribute__((format(printf, 2, 3))) bool fail_as(const char *as, const char *format, ...)
{
    bool worst = weight(as) == weight("contract");
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (!*problem || weight(as) > weight(kind)) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(problem, sizeof problem, format, arguments);
        va_end(arguments);
        kind = as;
    }
    pthread_mutex_unlock(&lock);
    return !worst;
}
#define fail(...) fail_as("contract", __VA_ARGS__)
static bool failed(void)
{
    return *problem && weight(kind) == weight("contract");
}

static void put_text(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 32 || c > 126 || c == '"' || c == '\\')
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void mix(const void *data, size_t n)
{
    for (const unsigned char *p = data; n--; p++) digest = (digest ^ *p) * 0x100000001b3u;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static const char *op_name(int op)
{
    static char number[24];
    if (op >= 0 && op < TUNER_OPS) return tuner_ops[op];
    snprintf(number, sizeof number, "function %d", op);
    return number;
}

/* A question that NCCL could ask: costs that grow with the size, some pairs not available. */
static struct question question(uint64_t *seed)
{
    struct question q = {.op = (int)(random_next(seed) % TUNER_OPS)};
    uint64_t bits = random_next(seed) % 36;
    q.bytes = (size_t)((UINT64_C(1) << bits) + random_next(seed) % (UINT64_C(1) << bits));
    q.pipe_ops = 1 + (int)(random_next(seed) % 4);
    q.registered = (int)(random_next(seed) & 1);
    q.collnet = (int)(random_next(seed) & 1);
    q.nvls = (int)(random_next(seed) & 1);
    q.algorithms = tuner.version <= 3 ? 6 : ALGORITHMS;
    for (int i = 0; i < q.algorithms * PROTOCOLS; i++) {
        float cost = 5 + (float)(random_next(seed) % 1000) / 10 + (float)q.bytes / 1e5f;
        bool offered = i / PROTOCOLS <= NCCL_ALGO_RING || random_next(seed) % 3 == 0;
        q.costs[i] = offered ? cost : (float)NCCL_ALGO_PROTO_IGNORE;
    }
    return q;
}

static void *begin_at(int shape)
{
    void *context = NULL;
    struct {
        ncclTunerConstants_v5_t constants;
        double after[16]; /* check_constants checks what is written there */
    } room;
    memset(&room, 0, sizeof room);
    ncclResult_t result = tuner_begin(&tuner, &context, 0xabcdef0000u + (uint64_t)shape, shapes[shape].ranks,
                                      shapes[shape].nodes, shapes[shape].domains, &room.constants);
    if (result != ncclSuccess) fail("init for %zu ranks returned %d", shapes[shape].ranks, (int)result);
    return context;
}

static bool end_all(void **context, int n)
{
    for (int i = 0; i < n; i++) {
        ncclResult_t result = tuner_end(&tuner, context[i]);
        if (result != ncclSuccess)
            fail_as("end", "%s returned %d: NCCL frees nothing of the communicator, and the program gets no error",
                    tuner.version < 5 ? "destroy" : "finalize", (int)result);
    }
    return !failed();
}

/* NCCL 2.22 and later keep the number of channels in a signed byte, and lower it to what the communicator has. */
static bool right_channels(const struct question *q, const struct reply *r)
{
    int c = r->channels, kept = (int8_t)c;
    bool collnet = r->algorithm == NCCL_ALGO_COLLNET_DIRECT || r->algorithm == NCCL_ALGO_COLLNET_CHAIN;
    if (c >= 0 && c <= TUNER_MAX_CHANNELS) return true;
    if (tuner.version < 2)
        return fail("%d channels for %s of %zu bytes; 2.19 has arrays for 32", c, op_name(q->op), q->bytes);
    if (c < 0 || kept <= 0)
        return fail("%d channels for %s of %zu bytes: NCCL keeps %d and divides by it", c, op_name(q->op), q->bytes,
                    kept);
    if (collnet)
        return fail("%d channels for CollNet, for which NCCL does not lower them; it has at most %d", c,
                    TUNER_MAX_CHANNELS);
    return fail_as("clamped", "%d channels for %s of %zu bytes; NCCL has at most %d", c, op_name(q->op), q->bytes,
                   TUNER_MAX_CHANNELS);
}

/* v1 and v2 choose a pair. 2.19 to 2.21 take it as it is; later ones ignore what they do not offer. */
static bool right_pair(const struct question *q, const struct reply *r)
{
    const char *as = tuner.version < 2 ? "contract" : "adapter";
    if (r->algorithm < -1 || r->algorithm >= ALGORITHMS || r->protocol < -1 || r->protocol >= PROTOCOLS)
        return fail_as(as, "algorithm %d, protocol %d: no such pair", r->algorithm, r->protocol);
    bool collnet = r->algorithm == NCCL_ALGO_COLLNET_DIRECT || r->algorithm == NCCL_ALGO_COLLNET_CHAIN;
    bool nvls = r->algorithm == NCCL_ALGO_NVLS || r->algorithm == NCCL_ALGO_NVLS_TREE;
    if ((collnet && !q->collnet) || (nvls && !q->nvls))
        return fail_as(as, "%s was chosen but is not supported", tuner_algorithms[r->algorithm]);
    return true;
}

static bool right_costs(const struct question *q, const struct reply *r)
{
    for (int i = 0; i < q->algorithms * PROTOCOLS; i++) {
        int a = i / PROTOCOLS, p = i % PROTOCOLS;
        bool offered = q->costs[i] >= 0;
        float cost = r->costs[i];
        if (!offered && a == r->algorithm && p == r->protocol)
            return fail("%s/%s was not available (-1) and now costs %g: NCCL runs what cannot run", tuner_algorithms[a],
                        tuner_protocols[p], (double)cost);
        if (!offered && cost >= 0)
            fail_as("unchosen",
                    "%s/%s was not available (-1) and now costs %g: NCCL runs it where all others cost more",
                    tuner_algorithms[a], tuner_protocols[p], (double)cost);
        else if (!(cost >= 0) && cost != (float)NCCL_ALGO_PROTO_IGNORE)
            fail_as("skipped", "%s/%s costs %g: NCCL skips it, as a cost of -1", tuner_algorithms[a],
                    tuner_protocols[p], (double)cost);
    }
    return r->algorithm >= 0 || fail("no pair is left for %s: NCCL fails the collective", op_name(q->op));
}

static bool right(const struct question *q, const struct reply *r)
{
    if (r->result != ncclSuccess)
        return fail("getCollInfo returned %d for %s of %zu bytes: NCCL fails the collective; no release has a fallback",
                    (int)r->result, op_name(q->op), q->bytes);
    if (r->outside) return fail("getCollInfo wrote outside its outputs: the table has %d rows", q->algorithms);
    return right_channels(q, r) && (tuner.version > 2 ? right_costs(q, r) : right_pair(q, r));
}

static bool check_slots(void)
{
    const char *missing = tuner_missing(&tuner);
    /* NCCL reads the table after init, which may fill it. */
    if (missing && strcmp(missing, "name") != 0 && strcmp(missing, "init") != 0) {
        void *context = begin_at(0);
        if (failed()) return false;
        missing = tuner_missing(&tuner);
        if (!missing) return end_all(&context, 1);
    }
    if (missing && strcmp(missing, "name") == 0) return fail_as("name", "name is NULL: NCCL logs it with %%s");
    return !missing || fail("%s is NULL", missing);
}

static bool check_init(void)
{
    void *context[SHAPES];
    int n = 0;
    for (; n < SHAPES && !failed(); n++) context[n] = begin_at(n);
    if (failed()) n--;
    return end_all(context, n);
}

static bool check_constants(void)
{
    struct {
        ncclTunerConstants_v5_t c;
        double after[16];
    } room;
    if (tuner.version < 5) return true;
    double *value = (double *)&room.c;
    for (size_t i = 0; i < sizeof room / sizeof *value; i++) value[i] = 1.25;
    void *context;
    ncclResult_t result = tuner_begin(&tuner, &context, 1, 16, 2, 2, &room.c);
    if (result != ncclSuccess) return fail("init returned %d", (int)result);
    for (size_t i = 0; i < sizeof room.c / sizeof *value; i++)
        if (!isfinite(value[i])) fail_as("number", "constant %zu is %g after init", i, value[i]);
    for (size_t i = 0; i < 16; i++)
        if (room.after[i] != 1.25 || tuner_beyond) fail("init wrote beyond the constants");
    mix(&room.c, sizeof room.c);
    return end_all(&context, 1);
}

static bool check_answers(void)
{
    void *context[SHAPES];
    uint64_t seed = 7;
    for (int i = 0; i < SHAPES; i++) {
        context[i] = begin_at(i);
        if (failed()) return false;
    }
    for (int k = 0; k < 20000; k++) {
        struct question q = question(&seed);
        struct reply r;
        tuner_ask(&tuner, context[k % SHAPES], &q, &r);
        if (!right(&q, &r)) return false;
        int answer[] = {r.algorithm, r.protocol, r.channels};
        mix(answer, sizeof answer);
    }
    return end_all(context, SHAPES);
}

/* The same question twice, also with other communicators in between: NCCL's ranks may have different sets of
 * communicators. */
static bool check_stable(void)
{
    enum { QUESTIONS = 500 };
    static struct reply first[QUESTIONS];
    void *context[3] = {begin_at(3), NULL, NULL};
    uint64_t seed = 11;
    if (failed()) return false;
    for (int k = 0; k < QUESTIONS; k++) {
        struct question q = question(&seed);
        tuner_ask(&tuner, context[0], &q, &first[k]);
    }
    context[1] = begin_at(1);
    context[2] = begin_at(4);
    if (failed()) return false;
    seed = 11;
    for (int k = 0; k < QUESTIONS; k++) {
        struct question q = question(&seed);
        struct reply r;
        tuner_ask(&tuner, context[1 + (k & 1)], &q, &r);
        tuner_ask(&tuner, context[0], &q, &r);
        if (r.algorithm != first[k].algorithm || r.protocol != first[k].protocol || r.channels != first[k].channels)
            return fail("%s of %zu bytes: %d/%d with %d channels, then %d/%d with %d after calls for other "
                        "communicators: ranks with different communicators would differ, and hang",
                        op_name(q.op), q.bytes, first[k].algorithm, first[k].protocol, first[k].channels, r.algorithm,
                        r.protocol, r.channels);
    }
    return end_all(context, 3);
}

static bool ask_odd(const int *ops, int nops, const size_t *sizes, int nsizes, uint64_t seed)
{
    void *context = begin_at(2);
    if (failed()) return false;
    for (int k = 0; k < 5000; k++) {
        struct question q = question(&seed);
        if (nops && k & 1) q.op = ops[random_next(&seed) % (uint64_t)nops];
        if (k & 2) q.bytes = sizes[random_next(&seed) % (uint64_t)nsizes];
        if (k & 4) q.pipe_ops = 1 + (int)(random_next(&seed) % 100000);
        if (k & 8 && tuner.version > 2) /* only ring/simple, as with NCCL_ALGO and NCCL_PROTO */
            for (int i = 0; i < q.algorithms * PROTOCOLS; i++)
                q.costs[i] = i == NCCL_ALGO_RING * PROTOCOLS + NCCL_PROTO_SIMPLE ? 0 : (float)NCCL_ALGO_PROTO_IGNORE;
        struct reply r;
        tuner_ask(&tuner, context, &q, &r);
        if (!right(&q, &r)) return false;
        int answer[] = {r.algorithm, r.protocol, r.channels};
        mix(answer, sizeof answer);
    }
    return end_all(&context, 1);
}

#define COUNT(array) (int)(sizeof array / sizeof *array)

/* What NCCL asks rarely. */
static bool check_strange(void)
{
    static const size_t sizes[] = {1, 3, 4294967295u, (size_t)1 << 32, (size_t)1 << 40};
    return ask_odd(NULL, 0, sizes, COUNT(sizes), 13);
}

/* What no release asks: 2.22 and later drop collectives of 0 bytes. */
static bool check_unknown(void)
{
    static const int ops[] = {5, 6, 7, 8, 9, 10, 11, 14, 15, 100};
    static const size_t sizes[] = {0, SIZE_MAX, SIZE_MAX - 1, (size_t)1 << 63};
    return ask_odd(ops, COUNT(ops), sizes, COUNT(sizes), 31);
}

/* The bytes in whose multiples NCCL counts a chunk: LL, LL128, Simple. */
static const size_t grain[] = {16, 1920, 512};

static bool check_chunk(void)
{
    void *context = begin_at(3);
    uint64_t seed = 17;
    if (failed()) return false;
    for (int k = 0; tuner_has_chunk(&tuner) && k < 3000; k++) {
        struct question q = question(&seed);
        size_t chunk = (size_t)(65536 + random_next(&seed) % (4 << 20));
        int algorithm = (int)(random_next(&seed) % ALGORITHMS), protocol = (int)(random_next(&seed) % PROTOCOLS);
        ncclResult_t result = tuner_ask_chunk(&tuner, context, q.op, q.bytes, algorithm, protocol, 8, &chunk);
        if (result != ncclSuccess) return fail("getChunkSize returned %d: NCCL fails the collective", (int)result);
        if (chunk < grain[protocol])
            return fail("a chunk of %zu bytes for %s with %s: NCCL rounds it to 0 and divides by that", chunk,
                        op_name(q.op), tuner_protocols[protocol]);
        mix(&chunk, sizeof chunk);
    }
    return end_all(&context, 1);
}

static void *ask_all(void *context)
{
    uint64_t seed = 19;
    for (int k = 0; k < 20000; k++) {
        struct question q = question(&seed);
        struct reply r;
        tuner_ask(&tuner, context, &q, &r);
        if (!right(&q, &r)) return (void *)1;
    }
    return NULL;
}

static bool check_threads(void)
{
    enum { THREADS = 4 };
    void *context[THREADS], *bad = NULL;
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++) context[i] = begin_at(i + 1);
    if (failed()) return false;
    for (int i = 0; i < THREADS; i++) pthread_create(&thread[i], NULL, ask_all, context[i]);
    for (int i = 0; i < THREADS; i++) {
        void *one;
        pthread_join(thread[i], &one);
        bad = one ? one : bad;
    }
    return !bad && end_all(context, THREADS);
}

/* Memory after creating and destroying communicators, and after many calls. */
static bool check_memory(void)
{
    uint64_t seed = 23;
    void *context = begin_at(2);
    if (failed()) return false;
    struct question q = question(&seed);
    struct reply r;
    for (int k = 0; k < 1000; k++) tuner_ask(&tuner, context, &q, &r);
    size_t before = psm_heap_in_use(0);
    for (int k = 0; k < 20000; k++) tuner_ask(&tuner, context, &q, &r);
    size_t calls = psm_heap_in_use(0);
    if (calls > before + 16384) return fail("20000 calls of getCollInfo leaked %zu bytes", calls - before);
    if (!end_all(&context, 1)) return false;
    before = psm_heap_in_use(0);
    for (int k = 0; k < 200; k++) {
        context = begin_at(k % SHAPES);
        if (!end_all(&context, 1)) return false;
    }
    calls = psm_heap_in_use(0);
    return calls <= before + 200 * 16 || fail("200 communicators leaked %zu bytes", calls - before);
}

static double fastest; /* ns per call */

static double measure(void *context, const struct question *q, int calls)
{
    double best = INFINITY;
    struct reply r;
    for (int batch = 0; batch < 20; batch++) {
        uint64_t begun = now_ns();
        for (int k = 0; k < calls; k++) tuner_ask(&tuner, context, q, &r);
        double each = (double)(now_ns() - begun) / calls;
        best = each < best ? each : best;
    }
    return best;
}

static bool check_latency(void)
{
    void *context = begin_at(3);
    uint64_t seed = 29;
    if (failed()) return false;
    struct question q = question(&seed);
    fastest = measure(context, &q, 500);
    return end_all(&context, 1);
}

static const struct {
    const char *name;
    bool (*run)(void);
} checks[] = {{"slots", check_slots},     {"init", check_init},      {"constants", check_constants},
              {"answers", check_answers}, {"stable", check_stable},  {"strange", check_strange},
              {"unknown", check_unknown}, {"chunk", check_chunk},    {"threads", check_threads},
              {"memory", check_memory},   {"latency", check_latency}};

/* Whether to run a check: all, or those that are named. */
static bool wanted(const char *name, int n, char **names)
{
    bool found = n == 0;
    for (int i = 0; i < n; i++) found |= strcmp(names[i], name) == 0;
    return found;
}

/* ---- questions from standard input ---- */

enum { MOST = 64 };
static void *contexts[MOST];
static int ncontexts;

static void *context_of(int n)
{
    if (n < 0 || n >= ncontexts) exit(2);
    return contexts[n];
}

static void ask(char *line)
{
    size_t ranks, nodes;
    int domains, n, at = 0, calls, algorithm, protocol;
    struct question q = {.algorithms = ALGORITHMS};
    struct reply r;
    char word[16], pair[40];
    if (sscanf(line, "init %zu %zu %d", &ranks, &nodes, &domains) == 3 && ncontexts < MOST) {
        ncclTunerConstants_v5_t constants;
        double *value = (double *)&constants;
        for (size_t i = 0; i < sizeof constants / sizeof *value; i++) value[i] = -5;
        ncclResult_t result = tuner_begin(&tuner, &contexts[ncontexts], 0x1234, ranks, nodes, domains, &constants);
        printf("{\"context\": %d, \"result\": %d, \"constants\": {", ncontexts++, (int)result);
        const char *comma = "";
        for (size_t i = 0; i < sizeof constants / sizeof *value; i++)
            if (value[i] != -5) {
                printf("%s\"%zu\": %.17g", comma, i, value[i]);
                comma = ", ";
            }
        printf("}}\n");
    } else if (sscanf(line, "get %d %d %zu %d %d %d %d%n", &n, &q.op, &q.bytes, &q.pipe_ops, &q.registered, &q.collnet,
                      &q.nvls, &at) == 7) {
        for (int i = 0; i < PAIRS; i++) q.costs[i] = (float)NCCL_ALGO_PROTO_IGNORE;
        int used;
        for (line += at; sscanf(line, "%39s%n", pair, &used) == 1; line += used) {
            double cost;
            if (sscanf(pair, "%d/%d=%lf", &algorithm, &protocol, &cost) != 3 || algorithm < 0 ||
                algorithm >= ALGORITHMS || protocol < 0 || protocol >= PROTOCOLS)
                exit(2);
            q.costs[algorithm * PROTOCOLS + protocol] = (float)cost;
        }
        tuner_ask(&tuner, context_of(n), &q, &r);
        printf("{\"result\": %d, \"algorithm\": \"%s\", \"protocol\": \"%s\", \"channels\": %d, \"outside\": %s}\n",
               (int)r.result, tuner_algorithm_name(r.algorithm), tuner_protocol_name(r.protocol), r.channels,
               r.outside ? "true" : "false");
    } else if (sscanf(line, "chunk %d %d %zu %d %d", &n, &q.op, &q.bytes, &algorithm, &protocol) == 5 &&
               tuner_has_chunk(&tuner)) {
        size_t chunk = 1 << 20;
        ncclResult_t result = tuner_ask_chunk(&tuner, context_of(n), q.op, q.bytes, algorithm, protocol, 8, &chunk);
        printf("{\"result\": %d, \"chunk\": %zu}\n", (int)result, chunk);
    } else if (sscanf(line, "time %d %d %zu %d", &n, &q.op, &q.bytes, &calls) == 4) {
        for (int i = 0; i < PAIRS; i++) q.costs[i] = (float)i + 1;
        printf("{\"ns\": %.1f}\n", measure(context_of(n), &q, calls));
    } else if (sscanf(line, "%15s %d", word, &n) == 2 && strcmp(word, "end") == 0) {
        printf("{\"result\": %d}\n", (int)tuner_end(&tuner, context_of(n)));
    } else {
        fprintf(stderr, "not a question: %s", line);
        exit(2);
    }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: psm_tuner_drive LIB VERSION [--ask | CHECK...]\n");
        return 2;
    }
    const char *wrong = tuner_open(&tuner, argv[1], atoi(argv[2]));
    if (wrong) {
        printf("{\"error\": ");
        put_text(wrong);
        printf("}\n");
        return 2;
    }
    if (argc > 3 && strcmp(argv[3], "--ask") == 0) {
        char *line = NULL;
        size_t room = 0;
        while (getline(&line, &room, stdin) > 0) ask(line);
        free(line);
        return 0;
    }
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        if (!wanted(checks[i].name, argc - 3, argv + 3)) continue;
        printf("{\"begin\": \"%s\"}\n", checks[i].name);
        fflush(stdout);
        *problem = 0;
        kind = "";
        bool good = checks[i].run() && !*problem;
        printf("{\"check\": \"%s\", \"good\": %s, \"kind\": \"%s\", \"text\": ", checks[i].name,
               good ? "true" : "false", kind);
        put_text(problem);
        printf("}\n");
        fflush(stdout);
        if (i == 0 && failed()) break; /* do not call a NULL slot */
    }
    printf("{\"digest\": \"%016llx\", \"ns\": %.1f, \"name\": ", (unsigned long long)digest, fastest);
    put_text(tuner_name(&tuner) ? tuner_name(&tuner) : "");
    printf("}\n");
    fflush(stdout);
    _Exit(0); /* skip the destructors of the library */
}
