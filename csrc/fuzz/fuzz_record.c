/* Fuzz target of the reader of other processes' records: a damaged file is passed over, or gives what is within it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"
#include "record_format.h"

enum { RECORD = 40, SLOT = 64, CAPACITY = 8, CONTROL_AT = REC_HEADER, DATA_AT = REC_HEADER + REC_CONTROL };

static char folder[] = "/tmp/psm-fuzz-XXXXXX"; /* records are never in /dev/shm */
static int folder_fd = -1;

static void clean_up(void)
{
    unlinkat(folder_fd, "psm-fuzz-1-2.rec", 0);
    rmdir(folder);
}

static void begin(void)
{
    if (folder_fd >= 0) return;
    fuzz_need(mkdtemp(folder) != NULL, "no folder in /tmp");
    folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    setenv("PSM_RECORD_DIR", folder, 1);
    atexit(clean_up);
}

static int one_slot(const struct psm_slot *slot, void *context)
{
    unsigned char copy[RECORD];
    memcpy(copy, slot->record, sizeof copy); /* a sanitizer sees what is not there */
    ++*(size_t *)context;
    fuzz_need(*(size_t *)context <= FUZZ_MOST / (size_t)REC_SLOT_HEADER, "more slots than the file has room for");
    return copy[0] == 0xff;
}

static int one_view(const psm_view *view, void *context)
{
    const struct psm_proc *proc = psm_view_proc(view);
    fuzz_need(memchr(proc->host, 0, sizeof proc->host) && memchr(proc->boot_id, 0, sizeof proc->boot_id),
              "a text has no end");
    fuzz_need(psm_view_owner(view) <= PSM_OWNER_UNKNOWN, "an owner of no kind");
    FUZZ_TAKEN();
    psm_view_foreach(view, "fuzz.ring", 1, RECORD, one_slot, context);
    psm_view_foreach(view, "fuzz.table", 1, RECORD, one_slot, context);
    return psm_view_clean_exit(view) ? 1 : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t slots = 0;
    begin();
    unlinkat(folder_fd, "psm-fuzz-1-2.rec", 0); /* a file that is cut and written again goes to the disk at once */
    int fd = openat(folder_fd, "psm-fuzz-1-2.rec", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    fuzz_need(fd >= 0 && write(fd, data, size) == (ssize_t)size, "cannot write the file");
    close(fd);
    psm_record_foreach_process(one_view, &slots);
    return 0;
}

#ifndef PSMKIT_LIBFUZZER
static size_t fuzz_right(uint8_t *out, size_t room)
{
    size_t size = DATA_AT + 2 * CAPACITY * SLOT;
    fuzz_need(size <= room, "no room");
    memset(out, 0, size);
    struct rec_header *h = (struct rec_header *)out;
    memcpy(h->magic, REC_MAGIC, sizeof h->magic);
    h->order = REC_ORDER;
    h->version = REC_VERSION;
    h->header_size = REC_HEADER;
    h->section_size = sizeof(struct rec_section);
    h->file_size = size;
    h->pid = (int32_t)fuzz_below(1 << 22);
    h->start_time = fuzz_draw();
    h->sections = REC_SECTIONS;
    h->state = fuzz_below(4) ? REC_RUNNING : REC_CLEAN;
    memcpy(h->boot_id, "0", 2);
    for (uint32_t i = 0; i < 2; i++) {
        struct rec_section *s = &h->section[fuzz_below(2) ? i : 2 + i];
        *s = (struct rec_section){.ready = 1,
                                  .kind = i ? PSM_TABLE : PSM_RING,
                                  .version = 1,
                                  .record_size = RECORD,
                                  .slot_size = SLOT,
                                  .control_offset = CONTROL_AT,
                                  .data_offset = DATA_AT + i * CAPACITY * SLOT,
                                  .capacity = CAPACITY};
        snprintf(s->name, sizeof s->name, i ? "fuzz.table" : "fuzz.ring");
        for (uint32_t k = 0; k < CAPACITY; k++) {
            struct rec_slot *slot = (struct rec_slot *)(out + s->data_offset + k * SLOT);
            slot->sequence = i ? SLOT_LIVE : 2 * (uint64_t)k + 2;
            slot->tid = (int32_t)fuzz_draw();
            for (int b = 0; b < RECORD; b++) slot->record[b] = (unsigned char)fuzz_draw();
        }
    }
    return size;
}
#endif
