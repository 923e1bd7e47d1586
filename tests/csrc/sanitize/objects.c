/* The ledger against a plain model of it: who lives, who ended, what lies at an address. One thread; stress.c has many.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "san_internal.h"

enum { NUMBERS = 600, STEPS = 60000, MANY = 50000, AREA = 64, GRAIN = 256, LATEST = 64, CHURN = 100000 };

static uint64_t seed = 1;

static uint64_t any(uint64_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % n;
}

static void check(bool good, const char *what)
{
    if (good) return;
    fprintf(stderr, "%s\n", what);
    _exit(1);
}

/* The generation that it got. */
static uint32_t born(enum psm_san_kind kind, uint64_t value, uint64_t size)
{
    san_born(kind, value, size, 0, 0, NULL);
    return san_generation();
}

static void ended(enum psm_san_kind kind, uint64_t value)
{
    struct psm_san_call call;
    psm_san_enter(&call, "end");
    psm_san_end(&call, kind, value);
    check(call.ends == 1, "a living object cannot be ended");
    psm_san_leave(&call, 0);
}

static uint32_t living(enum psm_san_kind kind, uint64_t value)
{
    struct san_shard *shard;
    const struct san_object *o = san_lock(kind, value, &shard);
    uint32_t generation = o ? o->generation : 0;
    check(!o || (o->value == value && o->kind == kind && o->state == SAN_ALIVE), "another object than was asked for");
    san_unlock(shard);
    return generation;
}

/* Of the one that ended last under the number, 0: none is remembered. */
static uint32_t remembered(enum psm_san_kind kind, uint64_t value)
{
    struct san_shard *shard;
    static struct san_copy copy;
    san_lock(kind, value, &shard);
    bool have = san_copy_ended(shard, kind, value, 0, &copy);
    san_unlock(shard);
    if (!have) return 0;
    check(copy.object.value == value && copy.object.kind == kind, "another ended object than was asked for");
    check(copy.birth.n > 0 && copy.end.n > 0, "an ended object without its stacks");
    return copy.object.generation;
}

/* ---- numbers ---- */

static void numbers(void)
{
    static struct {
        uint32_t generation, over; /* over: of the one that ended last */
        int at;                    /* the step of its end */
    } model[NUMBERS];
    static const enum psm_san_kind kinds[] = {PSM_SAN_STREAM, PSM_SAN_EVENT, PSM_SAN_ALLOC};
    int told = 0;
    for (int step = 0; step < STEPS; step++) {
        uint64_t n = any(NUMBERS);
        enum psm_san_kind kind = kinds[n % 3];
        uint64_t value = 0x700000000000 + n * GRAIN;
        if (model[n].generation) {
            ended(kind, value);
            model[n].over = model[n].generation;
            model[n].generation = 0;
            model[n].at = step;
        } else {
            model[n].generation = born(kind, value, 8);
        }
        n = any(NUMBERS);
        kind = kinds[n % 3];
        value = 0x700000000000 + n * GRAIN;
        check(living(kind, value) == model[n].generation, "who lives is not who was born last");
        if (model[n].generation) continue;
        uint32_t found = remembered(kind, value);
        check(!found || found == model[n].over, "the one that is remembered is not the one that ended last");
        check(found || !model[n].over || step - model[n].at > LATEST, "one that ended just now is forgotten");
        told += found != 0;
    }
    check(told > STEPS / 4, "hardly any is remembered");
    for (uint64_t n = 0; n < NUMBERS; n++)
        if (model[n].generation) ended(kinds[n % 3], 0x700000000000 + n * GRAIN);
}

/* Numbers that come again and again take the place of nobody else. */
static void churn(enum psm_san_kind kind)
{
    const uint64_t old = 0x1000;
    uint32_t generation = born(kind, old, 8);
    ended(kind, old);
    for (int i = 0; i < CHURN; i++) {
        uint64_t value = 0x2000 + (uint64_t)(i % 5) * 16;
        born(kind, value, 8);
        ended(kind, value);
    }
    check(remembered(kind, old) == generation, "an ended object is pushed out by numbers that are used again");
}

/* Numbers that never come again: the last ones are remembered, more than a few hundred. */
static void series(enum psm_san_kind kind)
{
    static uint32_t generation[MANY];
    for (uint64_t i = 0; i < MANY; i++) {
        generation[i] = born(kind, 0x100000 + i * 32, 8);
        ended(kind, 0x100000 + i * 32);
    }
    for (uint64_t i = MANY - 1024; i < MANY; i++)
        check(remembered(kind, 0x100000 + i * 32) == generation[i], "one of the last thousand is forgotten");
    check(!remembered(kind, 0x100000), "it is remembered for ever, so that this shows nothing");
}

static void many(enum psm_san_kind kind)
{
    static uint32_t generation[MANY];
    for (uint64_t i = 0; i < MANY; i++) generation[i] = born(kind, 0x9000000 + i * 512, 512);
    for (uint64_t i = 0; i < MANY; i++)
        check(living(kind, 0x9000000 + i * 512) == generation[i], "one of many is not found");
    for (uint64_t i = 0; i < MANY; i++) ended(kind, 0x9000000 + i * 512);
    for (uint64_t i = 0; i < MANY; i++) check(!living(kind, 0x9000000 + i * 512), "one of many is left");
}

/* ---- addresses ---- */

static void addresses(void)
{
    /* By grain. over: it was freed there and nothing was born over it since. */
    static uint64_t base[AREA], over[AREA];
    const uint64_t from = 0x500000000000;
    for (int step = 0; step < STEPS; step++) {
        uint64_t first = any(AREA), n = 1 + any(4);
        if (base[first]) {
            uint64_t is = base[first];
            ended(PSM_SAN_ALLOC, is);
            for (uint64_t i = 0; i < AREA; i++)
                if (base[i] == is) {
                    base[i] = 0;
                    over[i] = is;
                }
        } else {
            bool room = first + n <= AREA;
            for (uint64_t i = first; room && i < first + n; i++) room = !base[i];
            if (!room) continue;
            born(PSM_SAN_ALLOC, from + first * GRAIN, n * GRAIN);
            for (uint64_t i = first; i < first + n; i++) {
                uint64_t gone = over[i];
                for (uint64_t j = 0; gone && j < AREA; j++)
                    if (over[j] == gone) over[j] = 0; /* one that is covered in part is gone whole */
                base[i] = from + first * GRAIN;
            }
        }
        struct san_span span;
        uint64_t end, i = any(AREA);
        enum san_hit hit = san_span_find(from + i * GRAIN + any(GRAIN), &span, &end);
        check((hit == SAN_HIT_LIVE) == (base[i] != 0), "what lives at an address is not what was born there");
        check((hit == SAN_HIT_FREED) == (over[i] != 0), "what was freed at an address is not told");
        if (hit != SAN_HIT_NONE) check(span.base == (base[i] ? base[i] : over[i]), "another span than the one there");
        if (hit == SAN_HIT_FREED)
            check(remembered(PSM_SAN_ALLOC, span.base) == span.generation, "freed memory without its stacks");
    }
    for (uint64_t i = 0; i < AREA; i++)
        if (base[i]) {
            uint64_t is = base[i];
            ended(PSM_SAN_ALLOC, is);
            for (uint64_t j = 0; j < AREA; j++)
                if (base[j] == is) base[j] = 0;
        }
}

/* ---- time ---- */

static void times(void)
{
    const uint64_t until = psm_clock_ns() + 40000000, near = 20000;
    for (uint64_t before = psm_clock_ns(); before < until; before = psm_clock_ns()) {
        uint64_t now = san_clock_ns(), after = psm_clock_ns();
        /* However long this thread is stopped in between, the bounds are as far apart. */
        check(now + near >= before && now <= after + near, "the time of births is not that of the system");
    }
}

/* ---- slots ---- */

struct row {
    uint64_t what;
};

static void slots(void)
{
    static const struct psm_field fields[] = {PSM_FIELD(struct row, PSM_U64, what)};
    static const struct psm_schema schema = {.name = "test.rows",
                                             .version = 1,
                                             .record_size = sizeof(struct row),
                                             .fields = fields,
                                             .nfields = 1,
                                             .selector = -1};
    enum { ROOM = 8 };
    psm_section *table = psm_record_section(psm_record_self(), &schema, PSM_TABLE, ROOM);
    uint32_t aside, other;
    struct row *row = psm_table_claim(table, &aside);
    check(row != NULL, "no room in an empty table");
    row->what = 42;
    psm_table_publish(table, aside);
    psm_table_set_aside(table, aside);
    for (uint64_t i = 1; i < ROOM; i++) {
        row = psm_table_claim(table, &other);
        check(row && other != aside, "a slot that was set aside is given to somebody else");
        row->what = i;
        psm_table_publish(table, other);
    }
    check(!psm_table_claim(table, &other), "more rows than there is room for");
    for (int i = 0; i < 3 * ROOM; i++) { /* the search for a free slot comes by each of them */
        psm_table_release(table, other);
        row = psm_table_claim(table, &other);
        check(row && other != aside, "a slot that was set aside is given to somebody else later");
        row->what = ROOM - 1;
        psm_table_publish(table, other);
    }
    row = psm_table_claim_aside(table, aside, 1, 2, 3);
    check(row && row->what == 42, "a slot that was set aside does not come back as it was");
    psm_table_publish(table, aside);
    psm_table_release(table, aside);
    check(psm_table_claim(table, &other) && other == aside, "a slot that was released is lost");
    psm_table_publish(table, other);
    psm_table_set_aside(table, other); /* as a reader finds it */
}

static bool nowhere(uint64_t address, uint64_t *base, uint64_t *size)
{
    (void)address, (void)base, (void)size;
    return false;
}

int main(void)
{
    const struct psm_san_hooks hooks = {.place = nowhere};
    psm_san_start(PSM_SAN_WARN, "objects", &hooks);
    numbers();
    churn(PSM_SAN_EVENT);
    churn(PSM_SAN_ALLOC);
    series(PSM_SAN_STREAM);
    series(PSM_SAN_HOST);
    many(PSM_SAN_EVENT);
    addresses();
    times();
    slots();
    born(PSM_SAN_STREAM, 0x77770, 0); /* the only one that is left */
    puts("done");
    return 0;
}
