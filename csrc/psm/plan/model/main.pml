/* Main: groups of tasks, captured or not, replays, polls, the end of the graph, destroy. Part of reclaim.pml. */

/* What main may do next. */
#ifdef TRACE
#define MORE_GROUPS nextWhat == PREPARE
#define MAY_FAIL nextWhat == PREPARE
#define GRAPH nextA
#define MAY_REPLAY nextWhat == REPLAY && IS_GRAPH(nextA) && !G[nextA].dropped
#define MAY_DROP false
#define MORE_PLANS nextWhat == MADE && nplans < PLANS
#define ENOUGH_PLANS nextWhat != MADE
#else
#define MORE_GROUPS nplans < plans
#define MAY_FAIL nfailures < failures
#define GRAPH 1
#define MAY_REPLAY G[1].used && !G[1].dropped && nreplays < replays
#define MAY_DROP G[1].used && !G[1].dropped
#define MORE_PLANS nplans < plans
#define ENOUGH_PLANS nplans > first
#endif

/* finishPlan: what the scheduler has made of tasks. first: of its group. */
inline makePlan()
{
    atomic {
#ifdef TRACE
        P[nplans].kernel = kindKernel;
        P[nplans].ncolls = kindColls;
        P[nplans].ndec = kindDec;
#else
        if
        :: kinds & 1 -> P[nplans].kernel = true                                             /* inside of a node */
        :: kinds & 2 -> P[nplans].kernel = true; P[nplans].ncolls = 1                       /* over the network */
        :: kinds & 4 -> P[nplans].ndec = 2                                                  /* p2p without a kernel */
        :: kinds & 8 -> P[nplans].kernel = true; P[nplans].ncolls = 1; P[nplans].ndec = 1   /* both in a group */
        :: kinds & 16                                                                       /* copies to itself */
        fi;
#endif
        EV(MADE, ID(nplans), ANY, ANY, ANY);
#ifndef TRACE
        if
        :: P[nplans].ncolls > 0 -> EV(REGISTERED, ID(nplans), ANY, 1, ANY); P[nplans].holds = 1
        :: else
        fi;
#endif
        P[nplans].made = true;
        P[nplans].graph = graph;
        P[nplans].first = first;
        poolOps = poolOps + OPS(nplans);
        if
        :: P[nplans].ndec > 0 -> P[nplans].sync = SYNC
        :: else
        fi;
        nplans++
    }
}

/* Onto the launch stream, in the order of launches: also what a replay does. */
inline put(p)
{
    atomic {
        if
        :: P[p].kernel -> onLaunch ! KERNEL_OF, p
        :: else
        fi;
        if
        :: P[p].ndec > 0 ->
           P[p].due++;
           if
           :: variant != LOST_CALLBACK -> onLaunch ! HOST_OF, p
           :: else
           fi
        :: else
        fi
    }
}

inline launchWaitsForHost()
{
    if
    :: variant != UNORDERED_STREAMS -> onHost ! SIGNAL, 0; onLaunch ! WAIT, 0
    :: else
    fi
}

inline prepare()
{
    atomic {
        /* The graph that its stream is captured into, or none. */
#ifdef TRACE
        graph = nextC;
#else
        if
        :: graph = 0
        :: !closed -> graph = 1
        fi;
#endif
        EV(PREPARE, 0, depth, ANY, graph);
        G[graph].used = true;
        first = nplans
    };
    do
    :: poll()
    :: break
    od;
    atomic {
        depth++;
        onStream = graph != 0 || refs != 0 || blocking || (hostsPending != 0 && variant != MAIN_POSTS);
        do
        :: MORE_PLANS -> makePlan()
        :: ENOUGH_PLANS -> break
        od;
        acquired = false;
        p = first;
        do
        :: p < nplans ->
           if
           :: OPS(p) > 0 && onStream && graph == 0 -> acquired = true; hostsPending++; onHost ! TASK_OF, p
           :: P[p].ndec > 0 && !onStream && variant != ARM_LATE -> arm(p)
           :: else
           fi;
           p++
        :: else -> break
        od;
        if
        :: acquired -> launchWaitsForHost()
        :: else
        fi;
        if
        :: graph != 0 && nplans > first ->
           EV(REFS, 0, refs + nplans - first, nplans - first, ANY);
           refs = refs + nplans - first
        :: else
        fi;
        p = 0;
        EV(PREPARED, 0, depth, nplans - first, ANY)
    }
}

inline launchPlan()
{
    atomic {
        EV(BARRIER, 0, ANY, ANY, ANY);
        inBarrier = true;
        if
        :: variant == CUDA_IN_BARRIER ->
           EV(CUDA, 0, ANY, ANY, ANY);
           RULE(!inBarrier, "! barrier.cuda %d\n", p)
        :: else
        fi;
        EV(LAUNCHED, ID(p), P[p].kernel + 2 * (P[p].ndec > 0), (graph != 0), ANY);
        inBarrier = false;
        if
        :: graph == 0 ->
           P[p].kernels = P[p].kernels + P[p].kernel;
           P[p].hosts = P[p].hosts + (P[p].ndec > 0);
           put(p)
        :: else
        fi
    };
    if
    :: graph == 0 && !onStream -> hostStreamPlanTask(p, 0, MAIN)
    :: graph == 0 && onStream && (OPS(p) == 0 || variant == AFTER_ENQUEUES) -> enqueue(p, BY_LAUNCH_AFTER)
    :: else
    fi;
    if
    :: variant == RECLAIM_TWICE && graph == 0 -> enqueue(p, BY_LAUNCH_AFTER)
    :: else
    fi
}

inline finish()
{
    atomic {
        if
        :: variant != KEEP_SCOPE -> depth--
        :: else
        fi;
        EV(FINISH, 0, depth, ANY, ANY);
        RULE(depth == 0, "! scope.kept %d\n", p);
        first = 0;
        graph = 0;
        onStream = false;
        acquired = false
    }
}

/* A prepare that finds no room or no memory gives back what it has taken. */
inline failPrepare()
{
    atomic {
        EV(PREPARE, 0, depth, ANY, ANY);
        depth++;
        depth--;
        EV(PREPARE_FAILED, 0, depth, ANY, ANY);
        RULE(depth == 0, "! scope.kept %d\n", p)
    }
}

inline replay(g)
{
    atomic {
        G[g].runs++;
        onLaunch ! SIGNAL, 0;
        onHost ! WAIT, 0;
        p = 0;
        do
        :: p < nplans && P[p].graph == g ->
           if
           :: P[p].first == p ->
              m = p;
              acquired = false;
              do
              :: m < nplans && P[m].graph == g && P[m].first == p ->
                 if
                 :: OPS(m) > 0 -> acquired = true; onHost ! TASK_OF, m
                 :: else
                 fi;
                 m++
              :: else -> break
              od;
              if
              :: acquired -> launchWaitsForHost()
              :: else
              fi
           :: else
           fi;
           put(p);
           p++
        :: p < nplans && P[p].graph != g -> p++
        :: else -> break
        od;
        acquired = false;
        m = 0;
        p = 0;
        onLaunch ! GRAPH_END, g
    }
}

proctype mainThread()
{
    NUM p, m, n, colls, decs;
    xs onHost;
    xs onLaunch;
    byte graph, first, nreplays, nfailures;
    bool onStream, acquired, captured;
    do
    :: MORE_GROUPS ->
       prepare();
       p = first;
       do
       :: p < nplans -> launchPlan(); p++
       :: else -> p = 0; finish(); break
       od
    :: MAY_FAIL -> nfailures++; failPrepare()
    :: poll()
    :: atomic {
           MAY_REPLAY -> graph = GRAPH;
           EV(REPLAY, 0, graph, ANY, ANY);
           nreplays++;
           closed = true;
           replay(graph);
           graph = 0
       }
#ifdef TRACE
    /* CUDA does not tell NCCL when a graph is launched, so traces of a real communicator do not either. */
    :: atomic { untold > 0 && G[1].used && !G[1].dropped -> untold--; replay(1) }
#endif
    :: MAY_DROP -> closed = true; G[1].dropped = true
    :: (!G[1].used || G[1].dropped) -> break
    od;
    do
    :: nreclaimed == nplans -> break
    :: poll()
    od;
    atomic {
        EV(DESTROY, 0, nplans - nreclaimed, poolOps, ANY);
        RULE(poolOps == 0, "! pool.lost %d\n", p);
        RULE(refs == 0, "! refs.unbalanced %d\n", p);
        destroyed = true
    }
}
