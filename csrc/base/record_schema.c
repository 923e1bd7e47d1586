/* Schemas: validation, and their text in the file. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "log.h"
#include "record_format.h"

static const char *const types[] = {
    [PSM_U8] = "u8",   [PSM_U16] = "u16", [PSM_U32] = "u32",     [PSM_U64] = "u64", [PSM_I32] = "i32",
    [PSM_I64] = "i64", [PSM_F64] = "f64", [PSM_HEX64] = "hex64", [PSM_STR] = "str", [PSM_TIME] = "time",
};
static const uint32_t type_size[] = {
    [PSM_U8] = 1,  [PSM_U16] = 2, [PSM_U32] = 4,   [PSM_U64] = 8, [PSM_I32] = 4,
    [PSM_I64] = 8, [PSM_F64] = 8, [PSM_HEX64] = 8, [PSM_STR] = 0, [PSM_TIME] = 8,
};

void psm_record_text(char *to, size_t size, const char *from)
{
    size_t n = strnlen(from, size);
    memcpy(to, from, n);
    memset(to + n, 0, size - n);
}

static void put(struct psm_text *t, const char *s)
{
    psm_text_literal(t, s, strlen(s));
}

static void put_json(struct psm_text *t, const char *s)
{
    put(t, "\"");
    for (; *s; s++) {
        char escape[8];
        if (*s == '"' || *s == '\\' || (unsigned char)*s < 0x20) {
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned char)*s);
            put(t, escape);
        } else {
            psm_text_literal(t, s, 1);
        }
    }
    put(t, "\"");
}

size_t psm_schema_json(const struct psm_schema *schema, char *buffer, size_t size)
{
    struct psm_text t = {buffer, 0, size, 0};
    put(&t, "{\"name\": ");
    put_json(&t, schema->name);
    put(&t, ", \"version\": ");
    psm_text_uint(&t, schema->version);
    put(&t, ", \"selector\": ");
    psm_text_int(&t, schema->selector);
    put(&t, ", \"fields\": [");
    for (uint32_t i = 0; i < schema->nfields; i++) {
        const struct psm_field *f = &schema->fields[i];
        put(&t, i ? ", [" : "[");
        put_json(&t, f->name);
        put(&t, ", ");
        put_json(&t, types[f->type]);
        put(&t, ", ");
        psm_text_uint(&t, f->offset);
        put(&t, ", ");
        psm_text_uint(&t, f->size);
        put(&t, "]");
    }
    put(&t, "], \"messages\": [");
    for (uint32_t i = 0; i < schema->nmessages; i++) {
        const struct psm_record_message *m = &schema->messages[i];
        put(&t, i ? ", [" : "[");
        put_json(&t, m->name);
        put(&t, m->level == PSM_LEVEL_WARN ? ", \"WARN\", " : ", \"INFO\", ");
        put_json(&t, m->pattern);
        put(&t, "]");
    }
    put(&t, "]}");
    return t.lost ? 0 : t.n;
}

bool psm_schema_good(const struct psm_schema *schema)
{
    if (!schema->name || strlen(schema->name) >= REC_NAME || !*schema->name) return false;
    if (schema->record_size == 0 || schema->record_size > REC_LARGEST_RECORD) return false;
    for (uint32_t i = 0; i < schema->nfields; i++) {
        const struct psm_field *f = &schema->fields[i];
        if (f->type < PSM_U8 || f->type > PSM_TIME || f->size == 0 || f->size > schema->record_size) return false;
        if (f->offset > schema->record_size - f->size) return false;
        if (type_size[f->type] && type_size[f->type] != f->size) return false;
    }
    return schema->selector >= -1 && (schema->selector < 0 || (uint32_t)schema->selector < schema->nfields);
}
