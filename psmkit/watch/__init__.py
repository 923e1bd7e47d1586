"""Follow the logs of a running job and keep the verdict on it current.

:class:`~psmkit.watch.follow.Follower` reads what is new in files that grow, rotate, vanish and appear. A judgement
(:mod:`psmkit.watch.judge`) is the analysis of what was read so far, in a fork of the process: it ends the scan there, and here the scan goes on.
:class:`~psmkit.watch.state.State` says what changed from one judgement to the next, and since when.
"""
