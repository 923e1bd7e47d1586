/* Fuzz target of what a process believes of a segment: the first bytes of the file, and what the peer says of it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "shm/header.h"

/* The input: a psm_share, then the file. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    setenv("PSM_LOG_FILE", "/dev/null", 0);
    struct psm_share share = {.kind = PSM_SHARE_MEMFD};
    size_t head = size < sizeof share ? size : sizeof share;
    memcpy(&share, data, head);
    int fd = memfd_create("psm-fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    fuzz_need(fd >= 0 && write(fd, data + head, size - head) == (ssize_t)(size - head), "no memfd");
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    struct psm_segment_header header;
    psm_status status = psm_segment_read_header(fd, "the input", &header);
    if (status == PSM_OK) {
        fuzz_need(header.size == size - head && header.size > PSM_SEGMENT_HEADER, "a size that is not the file's");
        fuzz_need(memchr(header.label, 0, sizeof header.label) != NULL, "a label without an end");
    } else {
        fuzz_need(psm_last_error()->text[0] != 0, "refused without a reason");
    }
    struct psm_segment segment;
    status = psm_segment_attach(&segment, &share, fd);
    if (status == PSM_OK) {
        FUZZ_TAKEN();
        fuzz_need(segment.data && segment.size == share.size && segment.id == share.id, "attached something else");
        volatile uint8_t *bytes = segment.data;
        (void)bytes[0];
        (void)bytes[segment.size - 1];
    } else {
        fuzz_need(!segment.data && !segment.mapping && psm_last_error()->text[0], "half attached, or without a reason");
    }
    psm_segment_close(&segment);
    close(fd);
    return 0;
}

#ifndef PSMKIT_LIBFUZZER
static size_t fuzz_right(uint8_t *out, size_t room)
{
    uint64_t bytes = PSM_SEGMENT_HEADER + 1 + fuzz_below(4096);
    struct psm_segment_header h = {.magic = PSM_SEGMENT_MAGIC,
                                   .version = PSM_SEGMENT_VERSION,
                                   .header_size = PSM_SEGMENT_HEADER,
                                   .size = bytes,
                                   .id = fuzz_draw() | 1,
                                   .owner_pid = (uint32_t)fuzz_below(1 << 22),
                                   .label = "fuzz"};
    struct psm_share share = {.kind = fuzz_below(16) ? PSM_SHARE_MEMFD : (uint16_t)fuzz_below(6),
                              .device = -1,
                              .owner_pid = h.owner_pid,
                              .id = h.id,
                              .size = bytes - PSM_SEGMENT_HEADER,
                              .offset = PSM_SEGMENT_HEADER};
    fuzz_need(sizeof share + bytes <= room, "no room");
    if (share.kind == PSM_SHARE_POSIX) psm_segment_name(fuzz_draw(), (char *)share.blob);
    memcpy(out, &share, sizeof share);
    memset(out + sizeof share, 0, bytes);
    memcpy(out + sizeof share, &h, sizeof h);
    return sizeof share + bytes;
}
#endif
