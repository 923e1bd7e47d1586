/* The reclaim protocol of plans, for spin: who launches a plan, who posts and ends its proxy ops, who enqueues its
 * reclaimer and when it is freed. One communicator, a few plans of every kind, a graph that is replayed, an abort at any
 * moment; every order in which the threads can run is looked at. docs/plan_model.md tells how to run and read it.
 *
 * It is one model in two uses:
 * - verification: main does whatever an application may do, within bounds; a broken rule is an assertion, a hang is an
 *   end that is not valid. Every event is printed when a counterexample is replayed.
 * - TRACE: a recorded trace drives it. An event of the model can happen only if it is the next one of the trace; a trace
 *   is admitted when some order of the steps between events takes the model to its end.
 *
 * names.pml is made of psm_plan_events.h: events and enqueuers have the numbers that they have in C. */
#include "names.pml"

#ifndef PLANS
#define PLANS 3 /* at most; a run may ask for fewer */
#endif
#ifndef TRACE
#if PLANS == 2
#define ANY_PLAN(what) what(0) what(1)
#elif PLANS == 3
#define ANY_PLAN(what) what(0) what(1) what(2)
#else
#define ANY_PLAN(what) what(0) what(1) what(2) what(3)
#endif
#endif
#ifdef TRACE
#define GRAPHS 16
#else
#define GRAPHS 2
#endif
#define ANY -9 /* in an event: what the model does not speak of */

#ifdef TRACE
#define NUM short
#else
#define NUM byte
#endif
c_decl {
\#include "run.h"
}

/* ---- the settings of a run ---- */

/* Variants: the right one, and wrong ones with the rule that breaks. Those of libpsm have their names. */
#define COLL_FIRST 0        /* right */
#define RECLAIM_EARLY 1     /* reclaim.early: a plan is freed although ops, kernel or host function have not ended */
#define RECLAIM_TWICE 2     /* reclaim.twice: hostStreamPlanTask and LaunchKernelAfter both enqueue the reclaimer */
#define LOST_CALLBACK 3     /* callback.lost: the host function never gets onto the launch stream */
#define COUNT_ALL_OPS 4     /* count.mismatch: the sync condition counts ops that will never decrement it */
#define FREE_IN_CALLBACK 5  /* freed.touched: the host function frees the sync condition, the next replay arms it */
#define CUDA_IN_BARRIER 6   /* barrier.cuda: a CUDA call that is not captured between barrier and launch */
#define KEEP_SCOPE 7        /* scope.kept: launch finish does not pop the scoped frame */
#define UNBALANCED_REFS 8   /* refs.unbalanced: the reclaim of a persistent plan leaves persistentRefs as it is */
#define LOSE_OPS 9          /* pool.lost: a reclaim does not give the ops back to their pool */
#define LOSE_RECLAIMER 10   /* reclaim.never: hostStreamPlanTask does not enqueue the reclaimer on the host stream */
#define AFTER_ENQUEUES 11   /* reclaim.enqueuer: LaunchKernelAfter enqueues plans that have proxy ops */
#define LEAVE_EARLY 12      /* count.left: the host function does not wait for the count */
#define COUNT_TWICE 13      /* count.below: an op counts off when it begins and when it ends */
#define NEWEST_FIRST 14     /* fifo.order: callbacks run as they lie in the list, the last one first */
#define ARM_LATE 15         /* stuck: without host stream the sync condition is armed after the launch */
#define UNORDERED_STREAMS 16 /* stuck: the launch stream does not wait for the host stream */
#define MAIN_POSTS 17       /* op.order: main posts ops while the host stream still has some to post */
#define ARM_AFTER_ABORT 19  /* count.below: a host task after an abort arms again, while ops of the last replay count off */
#define KEEP_HOLDS 20       /* hold.lost: what a plan has registered for its launches is not given back with it */
#define DESTROY_EARLY 18    /* freed.touched: the destructor of a graph does not wait for its last replay */
byte variant, plans, replays, failures, kinds;
bool mayAbort, blocking; /* blocking: CUDA_LAUNCH_BLOCKING */

/* ---- what there is ---- */

typedef Plan {
    bool made, kernel, reclaimed, ready, running; /* running: its host function */
    byte graph, first, sync, enqueued, order;     /* first: of its group; order: among the reclaimers */
    byte fed;                                     /* launches whose ops are posted, and whose kernel has not ended */
    NUM ncolls, ndec;                             /* its ops; ndec: those that decrement the sync condition */
    NUM colls, decs;                              /* posted and not ended */
    NUM kernels, hosts;                           /* launched and not ended */
    short count;
    NUM due; /* host functions that have to run */
    NUM holds; /* registrations of buffers */
};
#define NO_SYNC 0
#define SYNC 1
#define FREED 2
Plan P[PLANS];
byte nplans, nreclaimed, serial, reclaims;
short refs, poolOps;
byte depth;
byte hostsPending; /* plans of no graph that the host stream has not posted yet */
bool aborted, inBarrier, destroyed, failed, closed;
byte posting;

/* A graph runs once at a time: what it puts on streams waits for its last replay. */
typedef Graph {
    bool used, dropped;
    byte runs;
};
Graph G[GRAPHS];
#define IS_GRAPH(g) ((g) > 0 && (g) < GRAPHS && G[g].used)

#define ID(p) ((p) + 1)
#define OPS(p) (P[p].ncolls + P[p].ndec)
#define OPEN_OPS(p) (P[p].colls + P[p].decs)
#define ENDED(p) (OPEN_OPS(p) == 0 && P[p].kernels == 0 && P[p].hosts == 0)

/* Streams: what is on them, in order. One waits for the other by a SIGNAL there and a WAIT here. */
#define TASK_OF 1
#define KERNEL_OF 2
#define HOST_OF 3
#define SIGNAL 4
#define WAIT 5
#define GRAPH_END 6
#define DEPTH (PLANS * 6 + 4)
chan onHost = [DEPTH] of { byte, NUM };
chan onLaunch = [DEPTH] of { byte, NUM };
NUM hostSignals, launchSignals;
/* Reclaimers: enqueued by any thread, taken by main. */
chan callbacks = [PLANS * 2] of { byte };
#define IS_DUE(p) (callbacks ? [eval(p)] && (ENDED(p) || variant == RECLAIM_EARLY))

/* ---- events and rules ---- */

#ifdef TRACE
short pos, which, untold;
int nextWhat, nextPlan, nextA, nextB, nextC, kindKernel, kindColls, kindDec, hint; /* hint: the plan that a destructor begins with */
bool dead; /* a rule was broken on this way: it leads nowhere */
#define EV(w, p, a, b, c) \
    (!dead && nextWhat == (w) && nextPlan == (p) && ((a) == ANY || nextA == (a)) && ((b) == ANY || nextB == (b)) && \
     ((c) == ANY || nextC == (c))) -> trace_step()
#define SHOW(w, p, a, b, c) skip
#define MAY_ABORT true
#define KERNEL_MAY_END(p) true /* an engine need not move data */
#define POST_ANY(colls) true
#define CALLBACK_IS_DUE nextWhat == RECLAIM && nextPlan > 0 && nextPlan <= nplans && IS_DUE(nextPlan - 1)
#define BROKEN(text, p) dead = true; c_code { trace_broke(now.which, now.pos, text); }
#else
#define EV(w, p, a, b, c) printf("@ %d %d %d %d %d %d\n", _pid, w, p, a, b, c)
#define SHOW(w, p, a, b, c) EV(w, p, a, b, c)
#define MAY_ABORT mayAbort
#define KERNEL_MAY_END(p) (OPS(p) == 0 || P[p].fed > 0 || aborted) /* data comes by the proxy */
#define POST_ANY(colls) colls == 0 /* in any order it would be the same: nobody looks between */
#define OR_IS_DUE(p) || IS_DUE(p)
#define CALLBACK_IS_DUE false ANY_PLAN(OR_IS_DUE)
#define BROKEN(text, p) printf(text, ID(p)); assert(false)
#endif
#define RULE(holds, text, p) if :: (holds) :: else -> BROKEN(text, p) fi
/* A thread uses a plan: its sync condition, an op, itself. */
#define TOUCH(p, by) if :: !P[p].reclaimed :: else -> SHOW(TOUCHED, ID(p), by, ANY, ANY); BROKEN("! freed.touched %d\n", p) fi
#define TOUCH_SYNC(p, by) if :: P[p].sync != FREED :: else -> SHOW(TOUCHED, ID(p), by, ANY, ANY); BROKEN("! freed.touched %d\n", p) fi

/* What nobody asks of a plan that is gone, so that there is only one of its kind. */
#define FORGET(p) \
    P[p].kernel = false; P[p].ready = false; P[p].graph = 0; P[p].first = 0; P[p].order = 0; P[p].ncolls = 0; P[p].ndec = 0

#ifdef TRACE
inline trace_step()
{
    c_code { now.pos++; trace_load(now.which, now.pos, &now.nextWhat); }
}
#endif

/* ---- steps that several threads share ---- */

/* ready first, then the count: nobody looks at them before an op is posted or the host function runs. */
inline arm(p)
{
    atomic {
        if
        :: variant == COUNT_ALL_OPS -> EV(ARMED, ID(p), OPS(p), P[p].ndec, ANY)
        :: else -> EV(ARMED, ID(p), P[p].ndec, P[p].ndec, ANY)
        fi;
        TOUCH_SYNC(p, MAIN);
        P[p].ready = false;
        P[p].count = P[p].ndec;
        if
        :: variant == COUNT_ALL_OPS -> P[p].count = OPS(p)
        :: else
        fi;
        RULE(P[p].count == P[p].ndec, "! count.mismatch %d\n", p)
    }
}

inline enqueue(p, by)
{
    atomic {
        EV(RECLAIMER, ID(p), by, ANY, ANY);
        RULE((by == BY_DESTRUCTOR) == (P[p].graph != 0), "! reclaim.enqueuer %d\n", p);
        RULE(by != BY_LAUNCH_AFTER || OPS(p) == 0 || variant == RECLAIM_TWICE, "! reclaim.enqueuer %d\n", p);
        RULE(P[p].enqueued == 0, "! reclaim.twice %d\n", p);
        P[p].enqueued++;
        P[p].order = serial;
        serial++;
        n = (variant == NEWEST_FIRST -> len(callbacks) : 0);
        callbacks ! p;
        do
        :: n > 0 -> callbacks ? m; callbacks ! m; n--
        :: else -> break
        od;
        m = 0
    }
}

/* hostStreamPlanTask: on main after the launch, or on the host stream; once a replay. */
inline hostStreamPlanTask(p, onStream, by)
{
    atomic {
        EV(HOST_TASK, ID(p), onStream, ANY, ANY);
        TOUCH(p, by);
        /* The history that opCounts are translated to belongs to one thread at a time. */
        RULE(posting == 0, "! op.order %d\n", p);
        posting++;
        captured = P[p].graph != 0;
#ifdef TRACE
    };
    atomic {
#endif
        /* After an abort nothing is armed or posted: ops of the last replay may still count off. */
        if
        :: !aborted || variant == ARM_AFTER_ABORT ->
           colls = P[p].ncolls;
           decs = P[p].ndec
        :: else
        fi;
        if
        :: decs > 0 && (onStream || variant == ARM_LATE) -> arm(p)
        :: else
        fi
    };
    atomic {
        do
        :: colls > 0 -> EV(OP_POSTED, ID(p), ANY, ANY, 0); P[p].colls++; colls--
        :: decs > 0 && POST_ANY(colls) -> EV(OP_POSTED, ID(p), ANY, ANY, 1); P[p].decs++; decs--
        :: colls == 0 && decs == 0 -> break
        od;
        posting--;
        if
        :: P[p].kernel && OPS(p) > 0 -> P[p].fed++
        :: else
        fi
    };
    if
    :: !captured && !(variant == LOSE_RECLAIMER && onStream) -> enqueue(p, BY_HOST_TASK)
    :: else
    fi
}

/* reclaimPlan: of the callback that main has looked at. */
inline reclaim(p)
{
    atomic {
#ifndef TRACE
        if
        :: P[p].holds > 0 && variant != KEEP_HOLDS -> EV(DEREGISTERED, ID(p), ANY, 0, ANY); P[p].holds = 0
        :: else
        fi;
#endif
        EV(RECLAIM, ID(p), OPEN_OPS(p), P[p].kernels, P[p].hosts);
        RULE(!P[p].reclaimed, "! reclaim.twice %d\n", p);
        RULE(ENDED(p), "! reclaim.early %d\n", p);
        RULE(P[p].holds == 0, "! hold.lost %d\n", p);
        RULE(P[p].order == reclaims, "! fifo.order %d\n", p);
        P[p].reclaimed = true;
        if
        :: P[p].sync == SYNC -> P[p].sync = FREED
        :: else
        fi;
        if
        :: variant != LOSE_OPS -> poolOps = poolOps - OPS(p)
        :: else
        fi;
        reclaims++;
        nreclaimed++;
        if
        :: P[p].graph != 0 && variant != UNBALANCED_REFS ->
           EV(REFS, 0, refs - 1, -1, ANY);
           refs--;
           RULE(refs >= 0, "! refs.unbalanced %d\n", p)
        :: else
        fi;
        FORGET(p)
    }
}

/* A poll runs the first callback once its plan has ended: what has not holds back what is behind. */
inline poll()
{
    atomic { CALLBACK_IS_DUE -> callbacks ? p; reclaim(p); p = 0 }
}

/* ---- main: the thread of the application ---- */

#include "main.pml"

/* ---- the proxy: any op that is posted may be the next to end ---- */

#define PROGRESS(p) \
    :: atomic { P[p].colls > 0 -> EV(OP_DONE, ID(p), ANY, ANY, 0); TOUCH(p, PROXY); P[p].colls-- } \
    :: atomic { P[p].decs > 0 && (P[p].ready || aborted) -> EV(OP_DONE, ID(p), ANY, ANY, 1); TOUCH(p, PROXY) }; \
       atomic { \
           EV(COUNTED_OFF, ID(p), P[p].count - 1 - (variant == COUNT_TWICE), ANY, ANY); \
           TOUCH_SYNC(p, PROXY); \
           P[p].count = P[p].count - 1 - (variant == COUNT_TWICE); \
           RULE(P[p].count >= 0, "! count.below %d\n", p); \
           P[p].decs-- \
       }

proctype proxy()
{
#ifdef TRACE
    short p;
end:
    do
    :: atomic { nextWhat == OP_DONE && nextPlan > 0 && nextPlan <= nplans -> p = nextPlan - 1 };
       if
       PROGRESS(p)
       fi
    od
#else
end:
    do
    ANY_PLAN(PROGRESS)
    od
#endif
}

/* ---- streams ---- */

proctype hostStream()
{
    NUM p, m, n, colls, decs;
    xr onHost;
    bool captured;
end:
    do
    :: onHost ? TASK_OF, p ->
       hostStreamPlanTask(p, 1, HOST);
       atomic {
           if
           :: !captured -> hostsPending--
           :: else
           fi;
           captured = false;
           p = 0
       }
    :: atomic { onHost ? SIGNAL, _ -> hostSignals++ }
    :: atomic { onHost ? WAIT, _ -> launchSignals > 0 -> launchSignals-- }
    od
}

/* Nobody calls NCCL when a graph is launched: only now is it known that a plan of it runs. */
inline start(p, what)
{
    if
    :: P[p].graph != 0 -> what++
    :: else
    fi
}

/* hostProxySyncCallback runs between the kernels: it lets the proxy go, and waits for it. */
proctype launchStream()
{
    NUM p;
    short left;
    xr onLaunch;
end:
    do
    :: atomic { onLaunch ? SIGNAL, _ -> launchSignals++ }
    :: atomic { onLaunch ? WAIT, _ -> hostSignals > 0 -> hostSignals-- }
    :: atomic { onLaunch ? KERNEL_OF, p -> start(p, P[p].kernels) };
       atomic {
           KERNEL_MAY_END(p) -> EV(KERNEL_DONE, ID(p), ANY, ANY, ANY);
           TOUCH(p, KERNEL);
           P[p].kernels--;
           if
           :: P[p].fed > 0 -> P[p].fed--
           :: else
           fi;
           p = 0
       }
    :: atomic { onLaunch ? HOST_OF, p -> start(p, P[p].hosts) };
       atomic {
           EV(CALLBACK, ID(p), P[p].count, ANY, ANY);
           TOUCH(p, HOST);
           TOUCH_SYNC(p, HOST);
           P[p].running = true;
           P[p].due--;
           P[p].ready = true
       };
       atomic {
           (P[p].count == 0 || aborted || variant == LEAVE_EARLY) -> left = P[p].count;
#ifdef TRACE
       };
       atomic {
#endif
           EV(CALLBACK_OVER, ID(p), (left != 0), left, (variant == FREE_IN_CALLBACK));
           TOUCH_SYNC(p, HOST);
           RULE(P[p].count == 0 || aborted, "! count.left %d\n", p);
           if
           :: variant == FREE_IN_CALLBACK -> P[p].sync = FREED
           :: else
           fi;
           P[p].running = false;
           P[p].hosts--;
           left = 0;
           p = 0
       }
    :: atomic { onLaunch ? GRAPH_END, p -> G[p].runs--; p = 0 }
    od
}

/* ---- CUDA destroys what a graph owns once nothing of it runs ---- */

#ifdef TRACE
#define IS_DROPPED(g) true /* which no event tells: the destructor does */
#else
#define IS_DROPPED(g) G[g].dropped
#endif
#define MAY_GO(g) (IS_DROPPED(g) && (G[g].runs == 0 || variant == DESTROY_EARLY))
#define FIRST_OF_DROPPED(p) \
    (P[p].made && P[p].graph != 0 && P[p].first == p && P[p].enqueued == 0 && MAY_GO(P[p].graph))
#define DESTRUCT(f) \
    :: atomic { FIRST_OF_DROPPED(f) -> p = f; group = f; EV(DESTRUCTOR, 0, P[f].graph, ANY, ANY) }

/* persistentDestructor, for each group that was captured: its plans in their order. */
proctype destructor()
{
    NUM p, m, n, group;
end:
    do
    :: if
#ifdef TRACE
       :: atomic {
              nextWhat == DESTRUCTOR && hint > 0 && hint <= nplans && FIRST_OF_DROPPED(hint - 1) ->
              p = hint - 1;
              group = p;
              G[P[p].graph].dropped = true;
              EV(DESTRUCTOR, 0, P[p].graph, ANY, ANY)
          }
       :: atomic { nextWhat == DESTRUCTOR && hint == 0 && IS_GRAPH(nextA) && MAY_GO(nextA) -> trace_step(); false }
#else
       ANY_PLAN(DESTRUCT)
#endif
       fi;
       do
       :: p < nplans && P[p].graph != 0 && P[p].first == group -> enqueue(p, BY_DESTRUCTOR); p++
       :: else -> break
       od;
       p = 0;
       group = 0
    od
}

/* ---- abort: at any moment, or never ---- */

proctype abortThread()
{
end:
    atomic { MAY_ABORT && !destroyed && !aborted -> EV(ABORT, 0, ANY, ANY, ANY); aborted = true }
over:
    skip
}

#ifndef TRACE
/* Nobody can go on. That is right at the end; else it is told who waits for what. */
#define STUCK_IN(p, why, text) EV(STUCK, ID(p), why, P[p].count, ANY); printf(text, ID(p))
#define RUNNING(p) :: P[p].running -> STUCK_IN(p, WAIT_COUNT, "! stuck %d\n")
#define DUE(p) :: P[p].due > 0 -> STUCK_IN(p, WAIT_RECLAIM, "! callback.lost %d\n")
#define NOT_READY(p) :: P[p].decs > 0 -> STUCK_IN(p, WAIT_RECLAIM, "! stuck %d\n")
#define FORGOTTEN(p) :: P[p].made && ENDED(p) && P[p].enqueued == 0 -> STUCK_IN(p, WAIT_RECLAIM, "! reclaim.never %d\n")

proctype watch()
{
end:
    atomic {
        timeout ->
        if
        :: destroyed -> goto over
        :: else
        fi;
        if
        ANY_PLAN(RUNNING)
        :: else ->
           if
           ANY_PLAN(DUE)
           :: else ->
              if
              ANY_PLAN(NOT_READY)
              :: else ->
                 if
                 ANY_PLAN(FORGOTTEN)
                 :: else -> EV(STUCK, 0, WAIT_RECLAIM, ANY, ANY); printf("! stuck 0\n")
                 fi
              fi
           fi
        fi
    }
    false;
over:
    skip
}
#else
/* Events of main that stand where they like, within bounds. */
#define IS_HELD(n) nextPlan > 0 && nextPlan <= nplans && !P[nextPlan - 1].reclaimed && P[nextPlan - 1].holds == n
proctype observer()
{
end:
    do
    :: atomic { nextWhat == TASK || nextWhat == ORDERED || nextWhat == UPLOADED -> trace_step() }
    :: atomic { nextWhat == REGISTERED && IS_HELD(nextB - 1) -> P[nextPlan - 1].holds++; trace_step() }
    :: atomic { nextWhat == DEREGISTERED && nextB >= 0 && IS_HELD(nextB + 1) -> P[nextPlan - 1].holds--; trace_step() }
    :: atomic { nextWhat == CUDA && !inBarrier -> trace_step() }
    od
}
#endif

init
{
    atomic {
#ifdef TRACE
        /* Which of the recorded traces: the next, as long as there is one. */
        do
        :: c_expr { now.which + 1 < trace_count } -> which++
        :: break
        od;
        c_code { now.untold = traces[now.which].untold; trace_load(now.which, 0, &now.nextWhat); };
        if
        :: blocking = false
        :: blocking = true
        fi;
#else
        c_code {
            now.variant = setting(0);
            now.plans = setting(1);
            now.replays = setting(2);
            now.failures = setting(3);
            now.mayAbort = setting(4);
            now.blocking = setting(5);
            now.kinds = setting(6);
        };
        if
        :: mayAbort
        :: mayAbort = false
        fi;
#endif
        run mainThread();
        run proxy();
        run hostStream();
        run launchStream();
        run destructor();
        run abortThread();
#ifdef TRACE
        run observer()
#else
        run watch()
#endif
    }
}
