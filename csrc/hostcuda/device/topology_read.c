/* Reads a topology file: a strict subset of TOML (docs/hostcuda.md). One `key = value` per line; values are whole
 * numbers, true, false, and "text" without escapes; the tables are [[gpu]] and [[link]]. Anything else is an error. */
#define _GNU_SOURCE
#include "device/hc_device.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 1 << 20, MAX_NODES = 4096 };
enum table { TOP, GPU, LINK };

/* The contents of a table. `has` has a bit for each key that was present. */
enum key {
    K_NODES,
    K_GPUS,
    K_LINK,
    K_LINKS,
    K_PEER,
    K_RDMA,
    K_NUMA_NODES,
    K_DRIVER,
    K_CUDA,
    K_NAME,
    K_COMPUTE,
    K_MEMORY,
    K_NODE,
    K_INDEX,
    K_PCI,
    K_NUMA,
    K_UUID,
    K_FROM,
    K_TO,
    K_KIND,
    K_COUNT,
    KEYS
};
enum type { NUMBER, TRUTH, TEXT, SIZE };

static const struct {
    const char *name;
    unsigned tables; /* bit of enum table */
    enum type type;
    long least, most;
} keys[KEYS] = {
    [K_NODES] = {"nodes", 1 << TOP, NUMBER, 1, MAX_NODES},
    [K_GPUS] = {"gpus", 1 << TOP, NUMBER, 0, HC_MAX_DEVICES},
    [K_LINK] = {"link", 1 << TOP, TEXT, 0, 0},
    [K_LINKS] = {"links", 1 << TOP, NUMBER, 0, HC_MAX_NVLINKS},
    [K_PEER] = {"peer", 1 << TOP | 1 << LINK, TRUTH, 0, 0},
    [K_RDMA] = {"rdma", 1 << TOP, TRUTH, 0, 0},
    [K_NUMA_NODES] = {"numa_nodes", 1 << TOP, NUMBER, 1, HC_MAX_DEVICES},
    [K_DRIVER] = {"driver", 1 << TOP, TEXT, 0, 0},
    [K_CUDA] = {"cuda", 1 << TOP, TEXT, 0, 0},
    [K_NAME] = {"name", 1 << TOP | 1 << GPU, TEXT, 0, 0},
    [K_COMPUTE] = {"compute", 1 << TOP | 1 << GPU, TEXT, 0, 0},
    [K_MEMORY] = {"memory", 1 << TOP | 1 << GPU, SIZE, 0, 0},
    [K_NODE] = {"node", 1 << GPU | 1 << LINK, NUMBER, 0, MAX_NODES - 1},
    [K_INDEX] = {"index", 1 << GPU, NUMBER, 0, HC_MAX_DEVICES - 1},
    [K_PCI] = {"pci", 1 << GPU, TEXT, 0, 0},
    [K_NUMA] = {"numa", 1 << GPU, NUMBER, 0, 1023},
    [K_UUID] = {"uuid", 1 << GPU, TEXT, 0, 0},
    [K_FROM] = {"from", 1 << LINK, NUMBER, 0, HC_MAX_DEVICES - 1},
    [K_TO] = {"to", 1 << LINK, NUMBER, 0, HC_MAX_DEVICES - 1},
    [K_KIND] = {"kind", 1 << LINK, TEXT, 0, 0},
    [K_COUNT] = {"count", 1 << LINK, NUMBER, 0, HC_MAX_NVLINKS},
};

struct values {
    uint32_t has;
    uint64_t number[KEYS];
    char text[KEYS][96];
};

struct reader {
    struct hc_topology *t;
    const char *path;
    int node, line;
    int table_line; /* line where the current table started */
    enum table table;
    bool top_done;
    struct values now;
    char *error;
    size_t size;
};

__attribute__((format(printf, 3, 4))) static bool wrong(struct reader *r, int line, const char *format, ...)
{
    va_list arguments;
    char text[256];
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (line)
        snprintf(r->error, r->size, "%s:%d: %s", r->path, line, text);
    else
        snprintf(r->error, r->size, "%s: %s", r->path, text);
    return false;
}

static bool has(const struct values *v, enum key key)
{
    return v->has >> key & 1;
}

bool hc_parse_pci(const char *text, unsigned *domain, unsigned *bus, unsigned *slot)
{
    unsigned function = 0;
    int n = 0;
    *domain = 0;
    if (sscanf(text, "%8x:%2x:%2x%n", domain, bus, slot, &n) != 3) {
        *domain = 0, n = 0;
        if (sscanf(text, "%2x:%2x%n", bus, slot, &n) != 2) return false;
    }
    if (text[n] == '.') {
        int m = 0;
        if (sscanf(text + n, ".%1x%n", &function, &m) != 1) return false;
        n += m;
    }
    return !text[n] && !function && *bus < 256 && *slot < 32;
}

static bool parse_uuid(const char *text, unsigned char uuid[16])
{
    static const char form[] = "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    int digits = 0;
    if (strlen(text) != sizeof form - 1) return false;
    for (size_t i = 0; i < sizeof form - 1; i++) {
        if (form[i] != 'x') {
            if (text[i] != form[i]) return false;
            continue;
        }
        if (!isxdigit((unsigned char)text[i])) return false;
        unsigned char digit =
            (unsigned char)(isdigit((unsigned char)text[i]) ? text[i] - '0' : (text[i] | 32) - 'a' + 10);
        uuid[digits / 2] = (unsigned char)(digits % 2 ? uuid[digits / 2] | digit : digit << 4);
        digits++;
    }
    return true;
}

static bool parse_size(const char *text, uint64_t *bytes)
{
    static const struct {
        const char *unit;
        int shift;
    } units[] = {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
    char *end;
    errno = 0;
    if (!isdigit((unsigned char)*text)) return false;
    unsigned long long n = strtoull(text, &end, 10);
    while (*end == ' ') end++;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(end, units[i].unit) == 0 && !errno && n && n < 1ull << (50 - units[i].shift)) {
            *bytes = n << units[i].shift;
            return true;
        }
    return false;
}

static bool parse_kind(const char *text, enum hc_link_kind *kind)
{
    static const char *const names[] = {"pcie", "nvlink", "nvswitch"};
    for (int i = 0; i < 3; i++)
        if (strcmp(text, names[i]) == 0) {
            *kind = (enum hc_link_kind)i;
            return true;
        }
    return false;
}

static bool parse_version(const char *text, int *major, int *minor)
{
    int n = 0;
    return isdigit((unsigned char)text[0]) && sscanf(text, "%2d.%1d%n", major, minor, &n) == 2 && !text[n];
}

static const char *usual_name(int major, int minor)
{
    if (major >= 10) return "NVIDIA B200";
    if (major == 9) return "NVIDIA H100 80GB HBM3";
    if (major == 8) return minor ? "NVIDIA L40S" : "NVIDIA A100-SXM4-80GB";
    return "Tesla V100-SXM2-32GB";
}

/* The same for all processes of a run, different for every GPU of it. */
static void make_uuid(struct hc_gpu *gpu, int node, int index)
{
    uint64_t mix[2] = {0x70736d6b69740000ull + (unsigned)node, 0x9e3779b97f4a7c15ull * (unsigned)(index + 1)};
    for (int i = 0; i < 2; i++) {
        mix[i] ^= mix[!i] << 13;
        mix[i] = (mix[i] ^ mix[i] >> 30) * 0xbf58476d1ce4e5b9ull;
        mix[i] = (mix[i] ^ mix[i] >> 27) * 0x94d049bb133111ebull;
        for (int b = 0; b < 8; b++) gpu->uuid[8 * i + b] = (unsigned char)(mix[i] >> 8 * b);
    }
}

static void set_link(struct hc_topology *t, int a, int b, enum hc_link_kind kind, int count, bool peer)
{
    t->link[a][b] = t->link[b][a] = (struct hc_link){kind, kind == HC_LINK_PCIE ? 0 : count, peer};
}

/* Top level: settings for all GPUs. */
static bool finish_top(struct reader *r)
{
    /* Bus numbers of a common eight-GPU machine; further GPUs are in further PCI domains. */
    static const unsigned char buses[] = {0x1b, 0x43, 0x52, 0x61, 0x9d, 0xc3, 0xd1, 0xdf};
    struct hc_topology *t = r->t;
    struct values *v = &r->now;
    enum hc_link_kind kind = HC_LINK_NVSWITCH;
    int major = 9, minor = 0, cuda_major = 13, cuda_minor = 5;
    t->nodes = has(v, K_NODES) ? (int)v->number[K_NODES] : 1;
    t->gpus = has(v, K_GPUS) ? (int)v->number[K_GPUS] : 8;
    t->node = r->node;
    if (r->node >= t->nodes)
        return wrong(r, 0, "PSM_NODE is %d, but there %s %d node%s", r->node, t->nodes == 1 ? "is" : "are", t->nodes,
                     t->nodes == 1 ? "" : "s");
    if (has(v, K_LINK)) (void)parse_kind(v->text[K_LINK], &kind);
    if (has(v, K_COMPUTE)) (void)parse_version(v->text[K_COMPUTE], &major, &minor);
    if (has(v, K_CUDA)) (void)parse_version(v->text[K_CUDA], &cuda_major, &cuda_minor);
    t->cuda = cuda_major * 1000 + cuda_minor * 10;
    snprintf(t->driver, sizeof t->driver, "%.39s", has(v, K_DRIVER) ? v->text[K_DRIVER] : "600.13.05");
    int numa_nodes = has(v, K_NUMA_NODES) ? (int)v->number[K_NUMA_NODES] : 1;
    int links = has(v, K_LINKS) ? (int)v->number[K_LINKS] : major >= 9 ? 18 : major == 8 ? 12 : 6;
    if (kind == HC_LINK_PCIE) links = 0;
    /* Without a switch the links of a GPU are distributed over its peers. */
    int pair = kind == HC_LINK_NVLINK && t->gpus > 1 ? links / (t->gpus - 1) : links;
    if (kind == HC_LINK_NVLINK && links && !pair) pair = 1;
    for (int i = 0; i < t->gpus; i++) {
        struct hc_gpu *gpu = &t->gpu[i];
        gpu->major = major, gpu->minor = minor;
        gpu->memory = has(v, K_MEMORY) ? v->number[K_MEMORY] : 80ull << 30;
        gpu->rdma = has(v, K_RDMA) && v->number[K_RDMA] != 0;
        snprintf(gpu->name, sizeof gpu->name, "%s", has(v, K_NAME) ? v->text[K_NAME] : usual_name(major, minor));
        gpu->domain = (unsigned)i / 8, gpu->bus = buses[i % 8], gpu->slot = 0;
        gpu->numa = i * numa_nodes / t->gpus;
        make_uuid(gpu, r->node, i);
        for (int k = 0; k < i; k++) set_link(t, k, i, kind, pair, has(v, K_PEER) ? v->number[K_PEER] != 0 : true);
    }
    r->top_done = true;
    return true;
}

static bool finish_gpu(struct reader *r)
{
    struct values *v = &r->now;
    if (!has(v, K_INDEX)) return wrong(r, r->table_line, "this [[gpu]] needs an `index`");
    if (v->number[K_INDEX] >= (uint64_t)r->t->gpus)
        return wrong(r, r->table_line, "index %d, but a node has %d GPUs", (int)v->number[K_INDEX], r->t->gpus);
    if (has(v, K_NODE) && v->number[K_NODE] >= (uint64_t)r->t->nodes)
        return wrong(r, r->table_line, "node %d, but `nodes` is %d", (int)v->number[K_NODE], r->t->nodes);
    if (has(v, K_NODE) && v->number[K_NODE] != (uint64_t)r->node) return true;
    struct hc_gpu *gpu = &r->t->gpu[v->number[K_INDEX]];
    if (has(v, K_COMPUTE)) {
        (void)parse_version(v->text[K_COMPUTE], &gpu->major, &gpu->minor);
        if (!has(v, K_NAME)) snprintf(gpu->name, sizeof gpu->name, "%s", usual_name(gpu->major, gpu->minor));
    }
    if (has(v, K_NAME)) snprintf(gpu->name, sizeof gpu->name, "%s", v->text[K_NAME]);
    if (has(v, K_MEMORY)) gpu->memory = v->number[K_MEMORY];
    if (has(v, K_PCI)) (void)hc_parse_pci(v->text[K_PCI], &gpu->domain, &gpu->bus, &gpu->slot);
    if (has(v, K_NUMA)) gpu->numa = (int)v->number[K_NUMA];
    if (has(v, K_UUID)) (void)parse_uuid(v->text[K_UUID], gpu->uuid);
    return true;
}

static bool finish_link(struct reader *r)
{
    struct values *v = &r->now;
    if (!has(v, K_FROM) || !has(v, K_TO)) return wrong(r, r->table_line, "this [[link]] needs `from` and `to`");
    uint64_t from = v->number[K_FROM], to = v->number[K_TO];
    if (from >= (uint64_t)r->t->gpus || to >= (uint64_t)r->t->gpus || from == to)
        return wrong(r, r->table_line, "a link from %d to %d, but a node has the GPUs 0 to %d", (int)from, (int)to,
                     r->t->gpus - 1);
    if (has(v, K_NODE) && v->number[K_NODE] >= (uint64_t)r->t->nodes)
        return wrong(r, r->table_line, "node %d, but `nodes` is %d", (int)v->number[K_NODE], r->t->nodes);
    if (has(v, K_NODE) && v->number[K_NODE] != (uint64_t)r->node) return true;
    struct hc_link link = r->t->link[from][to];
    if (has(v, K_KIND)) (void)parse_kind(v->text[K_KIND], &link.kind);
    if (has(v, K_COUNT)) link.count = (int)v->number[K_COUNT];
    if (link.kind != HC_LINK_PCIE && !link.count) link.count = 1;
    if (has(v, K_PEER)) link.peer = v->number[K_PEER] != 0;
    set_link(r->t, (int)from, (int)to, link.kind, link.count, link.peer);
    return true;
}

static bool finish_table(struct reader *r)
{
    bool fine = r->table == TOP ? finish_top(r) : r->table == GPU ? finish_gpu(r) : finish_link(r);
    memset(&r->now, 0, sizeof r->now);
    return fine;
}

/* Check texts with a fixed set of values here, so that the message has their line. */
static bool check_text(struct reader *r, enum key key, const char *text)
{
    enum hc_link_kind kind;
    unsigned a, b, c;
    unsigned char uuid[16];
    int major, minor;
    switch (key) {
    case K_LINK:
    case K_KIND:
        return parse_kind(text, &kind) ||
               wrong(r, r->line, "expected \"nvswitch\", \"nvlink\" or \"pcie\", found \"%s\"", text);
    case K_COMPUTE:
        return (parse_version(text, &major, &minor) && major >= 5) ||
               wrong(r, r->line, "expected a compute capability such as \"9.0\", found \"%s\"", text);
    case K_CUDA:
        return (parse_version(text, &major, &minor) && major >= 11) ||
               wrong(r, r->line, "expected a CUDA version of 11.0 or newer such as \"13.5\", found \"%s\"", text);
    case K_PCI:
        return hc_parse_pci(text, &a, &b, &c) ||
               wrong(r, r->line, "expected a PCI id such as \"0000:1b:00.0\", found \"%s\"", text);
    case K_UUID:
        return parse_uuid(text, uuid) ||
               wrong(r, r->line, "expected GPU- and 32 hexadecimal digits in five groups, found \"%s\"", text);
    case K_NAME:
    case K_DRIVER:
        return *text || wrong(r, r->line, "`%s` is empty", keys[key].name);
    default:
        return true;
    }
}

/* The value of `key` in text, which has no blanks at its ends but may have a comment. */
static bool read_value(struct reader *r, enum key key, char *text)
{
    struct values *v = &r->now;
    if (*text == '"') {
        char *end = strchr(text + 1, '"');
        if (!end) return wrong(r, r->line, "the text of `%s` has no quote at its end", keys[key].name);
        char *rest = end + 1;
        while (*rest == ' ' || *rest == '\t') rest++;
        if (*rest && *rest != '#') return wrong(r, r->line, "unexpected `%s` after the value", rest);
        *end = 0;
        text++;
        if (keys[key].type != TEXT && keys[key].type != SIZE)
            return wrong(r, r->line, "`%s` is not a text", keys[key].name);
        if (strchr(text, '\\')) return wrong(r, r->line, "escapes in texts are not supported");
        if (strlen(text) >= sizeof v->text[key])
            return wrong(r, r->line, "the text of `%s` is too long", keys[key].name);
        if (keys[key].type == SIZE && !parse_size(text, &v->number[key]))
            return wrong(r, r->line, "expected a size such as \"80 GiB\" (KiB, MiB, GiB, TiB), found \"%s\"", text);
        strcpy(v->text[key], text);
        return check_text(r, key, text);
    }
    char *end = strchr(text, '#');
    if (end) *end = 0;
    for (end = text + strlen(text); end > text && isspace((unsigned char)end[-1]);) *--end = 0;
    if (!*text) return wrong(r, r->line, "`%s` has no value", keys[key].name);
    if (keys[key].type == TRUTH) {
        v->number[key] = strcmp(text, "true") == 0;
        return v->number[key] || strcmp(text, "false") == 0 ||
               wrong(r, r->line, "`%s` expects true or false, found %s", keys[key].name, text);
    }
    if (keys[key].type != NUMBER) return wrong(r, r->line, "`%s` expects a \"text\", found %s", keys[key].name, text);
    errno = 0;
    long n = strtol(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || errno || (*text == '0' && text[1]))
        return wrong(r, r->line, "`%s` expects a whole number, found %s", keys[key].name, text);
    if (n < keys[key].least || n > keys[key].most)
        return wrong(r, r->line, "`%s` expects %ld to %ld, found %ld", keys[key].name, keys[key].least, keys[key].most,
                     n);
    v->number[key] = (uint64_t)n;
    return true;
}

static bool read_line(struct reader *r, char *line)
{
    while (*line == ' ' || *line == '\t') line++;
    for (char *end = line + strlen(line); end > line && isspace((unsigned char)end[-1]);) *--end = 0;
    if (!*line || *line == '#') return true;
    if (*line == '[') {
        bool gpu = strncmp(line, "[[gpu]]", 7) == 0;
        char *rest = line + (gpu ? 7 : 8);
        if (!gpu && strncmp(line, "[[link]]", 8) != 0)
            return wrong(r, r->line, "expected [[gpu]] or [[link]], found %s", line);
        while (*rest == ' ' || *rest == '\t') rest++;
        if (*rest && *rest != '#') return wrong(r, r->line, "unexpected `%s` after the table", rest);
        if (!finish_table(r)) return false;
        r->table = gpu ? GPU : LINK;
        r->table_line = r->line;
        return true;
    }
    size_t n = strspn(line, "abcdefghijklmnopqrstuvwxyz_");
    char *value = line + n;
    while (*value == ' ' || *value == '\t') value++;
    if (!n || *value != '=') return wrong(r, r->line, "expected `key = value`, found %s", line);
    for (value++; *value == ' ' || *value == '\t';) value++;
    line[n] = 0;
    for (int key = 0; key < KEYS; key++)
        if (strcmp(keys[key].name, line) == 0 && keys[key].tables >> r->table & 1) {
            if (has(&r->now, (enum key)key)) return wrong(r, r->line, "`%s` is given twice", line);
            r->now.has |= 1u << key;
            return read_value(r, (enum key)key, value);
        }
    return wrong(r, r->line, "unknown key `%s`%s%s", line, r->table == TOP ? "" : " in ",
                 r->table == TOP   ? ""
                 : r->table == GPU ? "[[gpu]]"
                                   : "[[link]]");
}

/* Makes what CUDA and NVML look GPUs up by unique, and counts each GPU's links. */
static bool finish(struct reader *r)
{
    struct hc_topology *t = r->t;
    for (int i = 0; i < t->gpus; i++) {
        struct hc_gpu *gpu = &t->gpu[i];
        gpu->links = 0;
        for (int k = 0; k < t->gpus; k++) {
            const struct hc_gpu *other = &t->gpu[k];
            if (k == i) continue;
            if (other->domain == gpu->domain && other->bus == gpu->bus && other->slot == gpu->slot)
                return wrong(r, 0, "GPUs %d and %d have the same PCI id", k < i ? k : i, k < i ? i : k);
            if (memcmp(other->uuid, gpu->uuid, 16) == 0)
                return wrong(r, 0, "GPUs %d and %d have the same uuid", k < i ? k : i, k < i ? i : k);
            if (t->link[i][k].kind == HC_LINK_NVSWITCH) {
                if (gpu->links < t->link[i][k].count) gpu->links = t->link[i][k].count;
            } else {
                gpu->links += t->link[i][k].count;
            }
        }
        if (gpu->links > HC_MAX_NVLINKS)
            return wrong(r, 0, "GPU %d has %d NVLinks, more than the %d that a GPU can have", i, gpu->links,
                         HC_MAX_NVLINKS);
    }
    return true;
}

static bool read_text(struct reader *r, char *text, size_t n)
{
    if (memchr(text, 0, n)) return wrong(r, 0, "not a text file");
    for (char *line = text; line;) {
        char *next = strchr(line, '\n');
        if (next) *next++ = 0;
        r->line++;
        if (!read_line(r, line)) return false;
        line = next;
    }
    return finish_table(r) && finish(r);
}

bool hc_topology_read(struct hc_topology *t, const char *path, int node, char *error, size_t size)
{
    struct reader *r = calloc(1, sizeof *r);
    char *text = calloc(1, MAX_FILE + 1);
    bool fine = false;
    if (r && text) {
        *r = (struct reader){
            .t = t, .path = path ? path : "the default topology", .node = node, .error = error, .size = size};
        size_t n = 0;
        FILE *file = path ? fopen(path, "re") : NULL;
        if (path && !file) {
            wrong(r, 0, "cannot be read: %s", strerror(errno));
        } else {
            if (file) n = fread(text, 1, MAX_FILE + 1, file);
            if (file && ferror(file))
                wrong(r, 0, "cannot be read: %s", strerror(errno));
            else if (n > MAX_FILE)
                wrong(r, 0, "larger than 1 MiB");
            else
                fine = read_text(r, text, n);
        }
        if (file) fclose(file);
        snprintf(t->source, sizeof t->source, "%s", path ? path : "default");
    } else {
        snprintf(error, size, "no memory to read the topology");
    }
    free(text);
    free(r);
    return fine;
}
