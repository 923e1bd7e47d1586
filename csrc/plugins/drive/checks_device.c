/* Optional functions that NCCL uses if they exist: irecvConsumed, makeVDevice, events for a profiler. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "drive.h"

/* NCCL calls it for each receive that test has reported as done. */
static void check_consumed(void)
{
    enum { N = 40 };
    if (d.props.netDeviceType == NCCL_NET_DEVICE_UNPACK && (!t_has_consumed() || !t_has_device_memory()))
        failed("contract", "netDeviceType is UNPACK but %s is NULL",
               t_has_consumed() ? "getDeviceMr" : "irecvConsumed");
    if (!t_has_consumed()) {
        skipped("irecvConsumed is NULL");
        return;
    }
    struct lane l = lane_open(0, 1 << 18);
    struct op *ops = ops_of(2 * N);
    for (int i = 0; i < N; i++) {
        recv_into(&ops[2 * i], l.recv, &l.in, 3000, 1);
        send_into(&ops[2 * i + 1], l.send, &l.out, 3000, 1, seed_of(d.rank, l.to, (uint64_t)i));
    }
    struct patience p = patience();
    int first[2] = {0, 0}; /* unfinished receives and sends */
    while (first[0] < N || first[1] < N) {
        bool progress = false;
        for (int side = 0; side < 2; side++) {
            if (first[side] == N) continue;
            struct op *op = &ops[2 * first[side] + side];
            if (!op->posted && post(op)) progress = true;
            void *request = op->request;
            if (!op->posted || !poll_op(op)) continue;
            if (side == 0) ok(t_consumed(l.recv, 1, request), "irecvConsumed of a receive that is done");
            first[side]++;
            progress = true;
        }
        if (progress)
            p.last = psm_clock_ns();
        else if (too_long(&p))
            failed("late", "%d of %d messages are done, each with irecvConsumed", first[0], N);
    }
    for (int i = 0; i < N; i++)
        compare(&ops[2 * i].piece[0], 3000, seed_of(l.from, d.rank, (uint64_t)i), "a message with irecvConsumed");
    free(ops);
    lane_close(&l);
}

/* ---- virtual devices ---- */

static void check_vdevice(void)
{
    static const size_t sizes[] = {1, 5000, 0, 262144, 77777, 8, 65536, 300001};
    enum { N = sizeof sizes / sizeof *sizes };
    if (!t_has_make_device()) {
        skipped("makeVDevice is NULL");
        return;
    }
    ncclNetVDeviceProps_v12_t props = {.ndevs = 0};
    int dev = -1, n = 0;
    if (t_make_device(&dev, &props) == ncclSuccess) failed("contract", "makeVDevice created a device of no devices");
    ok(t_devices(&n), "devices");
    if (n != d.devices)
        failed("contract", "devices reports %d after a makeVDevice that failed, and %d before", n, d.devices);
    if (d.devices < 2) {
        skipped("there is only one device");
        return;
    }
    props = (ncclNetVDeviceProps_v12_t){.ndevs = 2, .devs = {0, 1}};
    ncclResult_t result = t_make_device(&dev, &props);
    if (result != ncclSuccess) {
        skipped("makeVDevice of devices 0 and 1 returned %s", result_name(result));
        return;
    }
    if (dev != d.devices) failed("contract", "makeVDevice returned device %d; expected %d", dev, d.devices);
    ok(t_devices(&n), "devices");
    if (n != dev + 1) failed("contract", "devices reports %d after device %d was created", n, dev);
    ncclNetProperties_v12_t p;
    const char *missing;
    ok(t_properties(dev, &p, &missing), "getProperties of the virtual device");
    if (missing) failed("contract", "getProperties of the virtual device does not write %s", missing);
    if (!p.name || !*p.name) failed("contract", "the virtual device has no name");
    if (p.vProps.ndevs != 2 || p.vProps.devs[0] != 0 || p.vProps.devs[1] != 1)
        failed("contract", "vProps of the virtual device has %d devices, the first is %d; expected 0 and 1",
               p.vProps.ndevs, p.vProps.devs[0]);
    if (p.speed < d.props.speed)
        failed("contract", "the virtual device has %d Mbit/s, but device 0 alone %d", p.speed, d.props.speed);
    meet();
    struct lane l = lane_open(dev, 1 << 20);
    struct op *ops = ops_of(2 * N);
    for (int i = 0; i < N; i++) {
        recv_into(&ops[2 * i], l.recv, &l.in, sizes[i] + 10, 1);
        send_into(&ops[2 * i + 1], l.send, &l.out, sizes[i], 1, seed_of(d.rank, l.to, (uint64_t)i));
    }
    finish(ops, 2 * N);
    for (int i = 0; i < N; i++)
        compare(&ops[2 * i].piece[0], sizes[i], seed_of(l.from, d.rank, (uint64_t)i), "a message of a virtual device");
    free(ops);
    lane_close(&l);
    note("%s: %d Mbit/s", p.name, p.speed);
    meet();
}

/* ---- events ---- */

enum { EVENTS = 256 };
static struct event {
    void *parent;
    int64_t plugin;
    bool live;
} events[EVENTS];
static int nevents;
static char parents[2][MAX_PIECES]; /* of sends and of receives: NCCL's own phandles are opaque */
static char wrong[300];
static int64_t seen_id;

static void complain(const char *what)
{
    if (!*wrong) snprintf(wrong, sizeof wrong, "%s", what);
}

/* It may be called from a thread of the plugin: errors are stored, and reported by the check. */
static ncclResult_t hook(void **handle, int type, void *parent, int64_t plugin, void *descriptor)
{
    char *at = parent;
    (void)descriptor;
    if (!handle) return complain("the callback has no place for a handle"), ncclSuccess;
    if (type < ncclProfilerNetEventStart || type > ncclProfilerNetEventUpdateAndStop) {
        complain("the type of an event is not start, stop, update, or update and stop");
        return ncclSuccess;
    }
    if ((plugin & (int64_t)NCCL_PROFILER_NET_TYPE_MASK) == 0 || (plugin & NCCL_PROFILER_NET_VER_MASK) == 0)
        complain("the id of an event lacks a type in its upper half, or a version in the lower");
    seen_id = plugin;
    if (type == ncclProfilerNetEventStart) {
        if (!parent) return ncclSuccess; /* NCCL ignores the event */
        if (!(at >= parents[0] && at < parents[0] + sizeof parents))
            complain("the parent of an event is not a phandle of isend or irecv");
        if (nevents == EVENTS) return complain("there are more events than messages can have"), ncclSuccess;
        events[nevents] = (struct event){parent, plugin, true};
        *handle = &events[nevents++];
        return ncclSuccess;
    }
    struct event *e = *handle;
    if (!e) return ncclSuccess; /* of a start without a parent */
    if (e < events || e >= events + nevents || (e - events) < 0) {
        complain("an event is stopped or updated with a handle that no start returned");
        return ncclSuccess;
    }
    if (!e->live) complain("an event is stopped or updated after it was stopped");
    if (e->plugin != plugin) complain("an event is stopped with another id than it was started with");
    if (type != ncclProfilerNetEventUpdate) e->live = false;
    return ncclSuccess;
}

static void check_events(void)
{
    enum { N = 24 };
    struct lane l = lane_open(0, 1 << 18);
    struct op *ops = ops_of(2 * N);
    nevents = 0;
    wrong[0] = 0;
    event_hook = hook;
    for (int i = 0; i < N; i++) {
        recv_into(&ops[2 * i], l.recv, &l.in, 4000, 1);
        send_into(&ops[2 * i + 1], l.send, &l.out, 4000, 1, seed_of(d.rank, l.to, (uint64_t)i));
    }
    for (int i = 0; i < MAX_PIECES; i++) event_parents[i] = &parents[0][i];
    finish(ops, 2 * N);
    for (int i = 0; i < N; i++)
        compare(&ops[2 * i].piece[0], 4000, seed_of(l.from, d.rank, (uint64_t)i), "a message with events");
    int open = 0, told = nevents;
    for (int i = 0; i < nevents; i++) open += events[i].live;
    if (*wrong) failed("contract", "%s", wrong);
    if (open)
        failed("contract", "%d of %d events are not stopped, but test has reported all requests as done", open, told);
    memset(event_parents, 0, sizeof event_parents);
    /* Without a profiler the phandles are NULL. */
    struct op *more = ops_of(2);
    recv_into(&more[0], l.recv, &l.in, 100, 1);
    send_into(&more[1], l.send, &l.out, 100, 1, seed_of(d.rank, l.to, 99));
    finish(more, 2);
    compare(&more[0].piece[0], 100, seed_of(l.from, d.rank, 99), "a message without events");
    free(ops);
    free(more);
    lane_close(&l);
    event_hook = NULL;
    if (*wrong) failed("contract", "%s", wrong);
    if (nevents != told) failed("contract", "events have parents although phandle was NULL");
    if (told)
        note("%d events, id 0x%llx", told, (unsigned long long)seen_id);
    else
        skipped("the plugin reports no events");
}

const struct check device_checks[] = {
    {"consumed", check_consumed, 7},
    {"vdevice", check_vdevice, 9},
    {"events", check_events, 10},
    {NULL, NULL, 0},
};
