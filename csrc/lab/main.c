/* psm_rank: reads cases from standard input, runs them together with the other ranks, reports each as a line of JSON.
 *
 *   PSM_LAB_SOCKET=FD PSM_RANK=R PSM_RANKS=N psm_rank < CASES
 *   psm_rank variants      lists the variants, a line of JSON each
 *   psm_rank faults TEXT   parses TEXT as PSM_FAULTS: a line of JSON for each fault, or one that says what is wrong
 *   psm_rank devices       reports which CUDA it finds and how many devices it has, a line of JSON
 *   psm_rank reap          removes the segments that dead processes left in PSM_SHM_DIR, and lists them
 *
 * Exit status: 0 all cases good, 1 one failed, 2 it was called wrongly, 3 the runner is gone. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "fault_parse.h"
#include "psm/psm_segment.h"
#include "rank.h"

struct out {
    char text[4096];
    size_t n;
};

static void put(struct out *out, const char *text)
{
    while (*text && out->n < sizeof out->text - 2) out->text[out->n++] = *text++;
}

static void put_text(struct out *out, const char *key, const char *text)
{
    char escaped[8];
    put(out, ",\"");
    put(out, key);
    put(out, "\":\"");
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            snprintf(escaped, sizeof escaped, "\\%c", c);
        else if (c < 0x20 || c >= 0x7f)
            snprintf(escaped, sizeof escaped, "\\u%04x", c);
        else
            snprintf(escaped, sizeof escaped, "%c", c);
        put(out, escaped);
    }
    put(out, "\"");
}

static void put_int(struct out *out, const char *key, int64_t value)
{
    char text[96];
    snprintf(text, sizeof text, ",\"%s\":%" PRId64, key, value);
    put(out, text);
}

static void put_seconds(struct out *out, const char *key, double value)
{
    char text[96];
    snprintf(text, sizeof text, ",\"%s\":%.6f", key, value);
    put(out, text);
}

/* What became of a case, or what has failed in it so far. */
static void send_result(const char *word, const struct lab_result *r)
{
    struct out out = {.n = 0};
    const struct psm_error none = {.status = PSM_OK, .rank = -1, .peer = -1};
    const struct psm_error *error = r->status == PSM_OK ? &none : &r->error;
    put(&out, word);
    put(&out, " {\"protocol\":1");
    put_text(&out, "name", r->c->name);
    put_int(&out, "rank", r->rank);
    put_text(&out, "status", psm_status_name(r->status));
    put_text(&out, "stage", r->stage);
    put_text(&out, "by", r->by);
    put_text(&out, "text", r->error.text);
    put_text(&out, "error_stage", r->error.stage);
    put_int(&out, "peer", error->peer);
    put_text(&out, "cause", psm_cause_name(psm_error_cause(error)));
    put_int(&out, "named", psm_error_names(error));
    put_int(&out, "op_id", (int64_t)error->op_id);
    put_int(&out, "sys_errno", r->error.sys_errno);
    put_int(&out, "cuda", r->error.cuda);
    put_int(&out, "wrong", (int64_t)r->wrong);
    put_int(&out, "wrong_from", r->wrong_from);
    put_int(&out, "wrong_iter", (int64_t)r->wrong_iter);
    put_int(&out, "wrong_offset", (int64_t)r->wrong_offset);
    put_int(&out, "bytes", (int64_t)r->bytes);
    put_int(&out, "groups", (int64_t)r->groups);
    put_seconds(&out, "setup_seconds", r->setup_seconds);
    put_seconds(&out, "move_seconds", r->move_seconds);
    put_seconds(&out, "seconds", r->seconds);
    put(&out, "}");
    out.text[out.n++] = '\n';
    lab_send_line(out.text, out.n);
}

void lab_report(const struct lab_result *r)
{
    send_result("report", r);
}

void lab_trouble(const struct lab_result *r)
{
    send_result("trouble", r);
}

static int number(const char *name, int low)
{
    const char *text = getenv(name);
    char *end;
    long value = text ? strtol(text, &end, 10) : -1;
    if (text && *text && !*end && value >= low && value <= 1 << 20) return (int)value;
    fprintf(stderr, "psm_rank: %s is \"%s\"; expected a number from %d. `psmkit lab run` starts this program\n", name,
            text ? text : "", low);
    exit(2);
}

/* The lines go to standard output. */
static void list_variant(const char *transport, const char *name, const char *summary, const char *outcome, int wrong,
                         const char *faults, const struct psmDeclared *declared)
{
    struct out out = {.n = 0};
    char full[96];
    snprintf(full, sizeof full, "%s%s", transport, name);
    put(&out, "{\"protocol\":1");
    put_text(&out, "name", full);
    put_text(&out, "summary", summary);
    put_text(&out, "outcome", outcome);
    put_int(&out, "wrong", wrong);
    put_text(&out, "faults", faults ? faults : "");
    if (declared && declared->size >= sizeof *declared) {
        put_int(&out, "verdict", declared->verdict);
        put_int(&out, "shows", declared->shows);
        put_int(&out, "leaves", declared->leaves);
        put_text(&out, "status", declared->status == PSM_OK ? "" : psm_status_name(declared->status));
        put_text(&out, "codes", declared->codes ? declared->codes : "");
    }
    printf("%.*s}\n", (int)out.n, out.text);
}

static int list_variants(void)
{
    const struct psmP2pVariant *all[64];
    const struct psmNetVariant *net[64];
    size_t n = psmP2pVariants(all, 64), nets = psmNetVariants(net, 64);
/* A table of an older release ends before its later members. */
#define MEMBER(table, type, member)                                                                                    \
    ((table)->size >= offsetof(struct type, member) + sizeof(table)->member ? (table)->member : NULL)
    for (size_t i = 0; i < n && i < 64; i++)
        list_variant("", all[i]->name, all[i]->summary, all[i]->outcome, all[i]->wrong,
                     MEMBER(all[i], psmP2pVariant, faults), MEMBER(all[i], psmP2pVariant, declared));
    for (size_t i = 0; i < nets && i < 64; i++)
        list_variant("net/", net[i]->name, net[i]->summary, net[i]->outcome, net[i]->wrong, net[i]->faults,
                     MEMBER(net[i], psmNetVariant, declared));
#undef MEMBER
    return 0;
}

static int list_faults(const char *text)
{
    struct psm_fault_error error;
    struct psm_fault_set *set = psm_fault_parse(text, &error);
    if (!set) {
        struct out out = {.n = 0};
        put(&out, "{\"protocol\":1");
        put_int(&out, "position", (int64_t)error.position);
        put_text(&out, "wrong", error.text);
        printf("%.*s}\n", (int)out.n, out.text);
        return 1;
    }
    for (size_t i = 0; i < set->n; i++) {
        const struct psm_rule *rule = &set->rules[i];
        struct out out = {.n = 0};
        char normal[512];
        psm_fault_format(set, i, normal, sizeof normal);
        put(&out, "{\"protocol\":1");
        put_int(&out, "position", (int64_t)rule->position);
        put_text(&out, "text", normal);
        put_text(&out, "site", rule->site);
        put_int(&out, "prefix", rule->prefix);
        put_text(&out, "action", psm_fault_action_name(rule->action));
        put_int(&out, "rank", rule->rank);
        put_int(&out, "peer", rule->peer);
        put_int(&out, "nth", (int64_t)rule->nth);
        put_int(&out, "every", (int64_t)rule->every);
        printf("%.*s}\n", (int)out.n, out.text);
    }
    psm_fault_set_free(set);
    return 0;
}

/* Exit status 1, and why on standard error, where no CUDA works. */
static int list_devices(void)
{
    struct psmProxyState *state = NULL;
    struct psmProxyOptions options = {.size = sizeof options, .rank = 0, .nranks = 1};
    const struct psm_cuda *cuda = NULL;
    if (psmProxyInit(&state, &options) == PSM_OK) {
        struct psm_host host = psm_host_of(state);
        cuda = host.ops->cuda(host.self);
    }
    int count = 0, code = cuda ? (int)cuda->cudaGetDeviceCount(&count) : 0;
    struct out out = {.n = 0};
    put(&out, "{\"protocol\":1");
    put_text(&out, "path", cuda ? cuda->path : "");
    put_int(&out, "runtime", cuda ? cuda->runtime_version : 0);
    put_int(&out, "driver", cuda ? cuda->driver_version : 0);
    put_int(&out, "devices", count);
    if (!cuda)
        fprintf(stderr, "%s\n", psm_last_error()->text);
    else if (code != 0)
        fprintf(stderr, "cudaGetDeviceCount of %s returned %s\n", cuda->path, cuda->cudaGetErrorName(code));
    else
        printf("%.*s}\n", (int)out.n, out.text);
    psmProxyDestroy(state);
    return !cuda || code != 0;
}

/* Removes from PSM_SHM_DIR what dead processes have left there, and says the names. */
static int reap(void)
{
    struct psm_segment_info before[1024], after[1024];
    size_t had = 0, has = 0;
    enum { MOST = sizeof before / sizeof *before };
    if (psm_segments_list(before, MOST, &had) < 0 || psm_segments_prune(NULL) < 0 ||
        psm_segments_list(after, MOST, &has) < 0) {
        fprintf(stderr, "psm_rank: %s\n", psm_last_error()->text);
        return 1;
    }
    for (size_t i = 0; i < had && i < MOST; i++) {
        size_t j = 0;
        while (j < has && j < MOST && strcmp(before[i].name, after[j].name) != 0) j++;
        if (j == has) printf("%s\n", before[i].name);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "variants") == 0) return list_variants();
    if (argc == 3 && strcmp(argv[1], "faults") == 0) return list_faults(argv[2]);
    if (argc == 2 && strcmp(argv[1], "reap") == 0) return reap();
    if (argc == 2 && strcmp(argv[1], "devices") == 0) return list_devices();
    int fd = number("PSM_LAB_SOCKET", 3), rank = number("PSM_RANK", 0), ranks = number("PSM_RANKS", 1);
    struct lab_case c;
    char wrong[256];
    int failures = 0, more;
    /* A runner that is killed leaves no ranks behind; its debugger may look into this process. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    lab_connect(fd, rank, ranks);
    while ((more = lab_case_read(&c, wrong, sizeof wrong)) > 0) {
        struct lab_result result;
        char name[80];
        lab_run(&c, rank, ranks, &result);
        lab_report(&result);
        if (result.status != PSM_OK) failures++;
        /* A barrier between cases: the runner says here whether there is a job still. */
        snprintf(name, sizeof name, "case-%.60s", c.name);
        if (lab_meet(name, false) > 0) return 1;
    }
    if (more < 0) {
        fprintf(stderr, "psm_rank: rank %d: %s\n", rank, wrong);
        return 2;
    }
    return failures > 0;
}
