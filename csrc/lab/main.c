/* psm_rank: reads cases from standard input, runs them together with the other ranks, reports each as a line of JSON.
 *
 *   PSM_LAB_SOCKET=FD PSM_RANK=R PSM_RANKS=N psm_rank < CASES
 *   psm_rank variants      lists the variants, a line of JSON each
 *   psm_rank faults TEXT   parses TEXT as PSM_FAULTS: a line of JSON for each fault, or one that says what is wrong
 *   psm_rank devices       reports which CUDA it finds and how many devices it has, a line of JSON
 *   psm_rank reap          removes the segments that dead processes left in PSM_SHM_DIR, and lists them
 *
 * Exit status: 0 all cases good, 1 one failed, 2 it was called wrongly, 3 the runner is gone. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fault_parse.h"
#include "psm/psm_segment.h"
#include "rank.h"

/* What became of a case, or what has failed in it so far. */
static void send_result(const char *word, const struct lab_result *r)
{
    const struct psm_error none = {.status = PSM_OK, .rank = -1, .peer = -1};
    const struct psm_error *error = r->status == PSM_OK ? &none : &r->error;
    struct lab_report report;
    lab_report_begin(&report, word, &r->o, psm_status_name(r->status), r->error.text);
    if (report.out) {
        lab_put_text(report.out, "error_stage", r->error.stage);
        lab_put_int(report.out, "peer", error->peer);
        lab_put_text(report.out, "cause", psm_cause_name(psm_error_cause(error)));
        lab_put_int(report.out, "named", psm_error_names(error));
        lab_put_int(report.out, "op_id", (int64_t)error->op_id);
        lab_put_int(report.out, "sys_errno", r->error.sys_errno);
        lab_put_int(report.out, "cuda", r->error.cuda);
        lab_put_int(report.out, "left", r->left);
        lab_put_int(report.out, "ends", r->ends[0]);
        lab_put_int(report.out, "far_ends", r->ends[1]);
        lab_put_int(report.out, "peers", r->peers[0]);
        lab_put_int(report.out, "far_peers", r->peers[1]);
        lab_put_int(report.out, "held", r->held);
        lab_put_int(report.out, "kept", r->kept);
    }
    lab_report_end(&report);
}

void lab_report(const struct lab_result *r)
{
    send_result("report", r);
}

void lab_trouble(const struct lab_result *r)
{
    send_result("trouble", r);
}

/* The lines go to standard output. */
static void list_variant(const char *transport, const char *name, const char *summary, const char *outcome, int wrong,
                         const char *faults, const struct psmDeclared *declared)
{
    char full[96];
    snprintf(full, sizeof full, "%s%s", transport, name);
    printf("{\"protocol\":1");
    lab_put_text(stdout, "name", full);
    lab_put_text(stdout, "summary", summary);
    lab_put_text(stdout, "outcome", outcome);
    lab_put_int(stdout, "wrong", wrong);
    lab_put_text(stdout, "faults", faults ? faults : "");
    if (declared && declared->size >= sizeof *declared) {
        lab_put_int(stdout, "verdict", declared->verdict);
        lab_put_int(stdout, "shows", declared->shows);
        lab_put_int(stdout, "leaves", declared->leaves);
        lab_put_text(stdout, "status", declared->status == PSM_OK ? "" : psm_status_name(declared->status));
        lab_put_text(stdout, "codes", declared->codes ? declared->codes : "");
    }
    printf("}\n");
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
        printf("{\"protocol\":1");
        lab_put_int(stdout, "position", (int64_t)error.position);
        lab_put_text(stdout, "wrong", error.text);
        printf("}\n");
        return 1;
    }
    for (size_t i = 0; i < set->n; i++) {
        const struct psm_rule *rule = &set->rules[i];
        char normal[512];
        psm_fault_format(set, i, normal, sizeof normal);
        printf("{\"protocol\":1");
        lab_put_int(stdout, "position", (int64_t)rule->position);
        lab_put_text(stdout, "text", normal);
        lab_put_text(stdout, "site", rule->site);
        lab_put_int(stdout, "prefix", rule->prefix);
        lab_put_text(stdout, "action", psm_fault_action_name(rule->action));
        lab_put_int(stdout, "rank", rule->rank);
        lab_put_int(stdout, "peer", rule->peer);
        lab_put_int(stdout, "nth", (int64_t)rule->nth);
        lab_put_int(stdout, "every", (int64_t)rule->every);
        printf("}\n");
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
    if (!cuda) {
        fprintf(stderr, "%s\n", psm_last_error()->text);
    } else if (code != 0) {
        fprintf(stderr, "cudaGetDeviceCount of %s returned %s\n", cuda->path, cuda->cudaGetErrorName(code));
    } else {
        printf("{\"protocol\":1");
        lab_put_text(stdout, "path", cuda->path);
        lab_put_int(stdout, "runtime", cuda->runtime_version);
        lab_put_int(stdout, "driver", cuda->driver_version);
        lab_put_int(stdout, "devices", count);
        printf("}\n");
    }
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

/* The transport's variants of a stranger, which register themselves when their library is loaded. */
static bool load_variants(void)
{
    const char *path = getenv("PSM_LAB_VARIANTS");
    if (!path || !*path || dlopen(path, RTLD_NOW)) return true;
    fprintf(stderr, "psm_rank: %s\n", dlerror());
    return false;
}

int psm_rank_main(int argc, char **argv)
{
    if (!load_variants()) return 2;
    if (argc == 2 && strcmp(argv[1], "variants") == 0) return list_variants();
    if (argc == 3 && strcmp(argv[1], "faults") == 0) return list_faults(argv[2]);
    if (argc == 2 && strcmp(argv[1], "reap") == 0) return reap();
    if (argc == 2 && strcmp(argv[1], "devices") == 0) return list_devices();
    struct lab_place here = lab_place("psm_rank", "psmkit lab run");
    struct lab_case c;
    char wrong[256];
    int failures = 0, more;
    lab_tie_to_runner();
    lab_connect(here.fd, here.rank, here.ranks);
    while ((more = lab_case_read(&c, wrong, sizeof wrong)) > 0) {
        struct lab_result result;
        lab_run(&c, here.rank, here.ranks, &result);
        lab_report(&result);
        if (result.status != PSM_OK) failures++;
        if (lab_meet_after(&c.task) > 0) return 1;
    }
    if (more < 0) {
        fprintf(stderr, "psm_rank: rank %d: %s\n", here.rank, wrong);
        return 2;
    }
    return failures > 0;
}
