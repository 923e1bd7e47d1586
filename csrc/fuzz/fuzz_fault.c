/* Fuzz target of the fault grammar: a text that is taken is written again, and read again, and means the same. */
#include "fault_parse.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct psm_fault_error error = {.position = SIZE_MAX};
    char *text = malloc(size + 1), first[512], second[512];
    fuzz_need(text != NULL, "no memory");
    memcpy(text, data, size);
    text[size] = 0;
    struct psm_fault_set *set = psm_fault_parse(text, &error);
    if (!set) {
        fuzz_need(error.position <= strlen(text), "the mistake is outside of the text");
        fuzz_need(error.text[0] && strlen(error.text) < sizeof error.text, "refused without a reason");
        free(text);
        return 0;
    }
    FUZZ_TAKEN();
    for (size_t i = 0; i < psm_fault_set_size(set); i++) {
        fuzz_need(psm_fault_format(set, i, first, sizeof first) < sizeof first, "a rule has no bound");
        struct psm_fault_set *again = psm_fault_parse(first, &error);
        fuzz_need(again != NULL, first);
        fuzz_need(psm_fault_set_size(again) == 1, "one rule was written and others read");
        psm_fault_format(again, 0, second, sizeof second);
        fuzz_need(strcmp(first, second) == 0, "a rule means something else when it is read again");
        psm_fault_set_free(again);
    }
    psm_fault_set_free(set);
    free(text);
    return 0;
}

#ifndef PSMKIT_LIBFUZZER
static size_t fuzz_right(uint8_t *out, size_t room)
{
    static const char *const parts[] = {
        "proxy.setup", "cuda*",      "*",       ":error=ENOMEM", ":error=-2", ":hang",   ":slow=10us", ":late=2s",
        ":kill",       ":kill=SEGV", ":drop",   ":short=7",      ":corrupt",  ":rank=2", ":peer=0",    ",nth=3/5",
        ",nth=2+",     ":p=0.25",    ":seed=7", ":op=move",      ";",         " ",       ":duplicate", ":reorder"};
    size_t n = 0;
    for (size_t k = fuzz_below(3);; k--) {
        n += (size_t)snprintf((char *)out + n, room - n, "%s%s", parts[fuzz_below(3)], parts[3 + fuzz_below(10)]);
        for (size_t more = fuzz_below(4); more > 0; more--)
            n += (size_t)snprintf((char *)out + n, room - n, "%s",
                                  parts[13 + fuzz_below(sizeof parts / sizeof *parts - 13)]);
        if (k == 0) return n;
        out[n++] = ';';
    }
}
#endif
