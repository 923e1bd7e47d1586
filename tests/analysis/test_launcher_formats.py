"""One generated line or block for each form in which a launcher or a scheduler reports a process: the verdict, and who it is."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit

Who = tuple[int | None, str | None, int | None]  # rank, host, process id

_BAR = "=" * 79 + "\n"
_BAD = _BAR + "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
_HOROVOD = (
    "[2026-03-01 10:00:00.123456: W /tmp/horovod/common/stall_inspector.cc:107] One or more tensors were submitted to be reduced, gathered or "
    "broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds. This may indicate that different ranks are "
    "trying to submit different tensors or that only subset of ranks is submitting tensors, which will cause deadlock. \n"
)
_ELASTIC = "E0301 10:00:00.123000 4711 torch/distributed/elastic/multiprocessing/api.py:882] "
_RAY = "A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, check the logs for the dead worker. "

#: Name, text, verdict, who.
FORMATS: list[tuple[str, str, str, list[Who]]] = [
    # torch.distributed.elastic, torch.distributed.launch, torch.multiprocessing
    ("elastic failed", _ELASTIC + "failed (exitcode: -9) local_rank: 3 (pid: 812917) of binary: /usr/bin/python\n", "failed", [(3, None, 812917)]),
    ("elastic failed, joined workers", "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 2 (pid: 11) of fn: main (start_method: spawn)\n", "failed", [(2, None, 11)]),
    ("elastic summary glued", "[2]: Root Cause (first observed failure): [0]: time : 2026-03-01_10:00:00 host : n2 rank : 10 (local_rank: 2) exitcode : -6 (pid: 189) error_file: <N/A> traceback : Signal 6 (SIGABRT) received by PID 189\n", "failed", [(10, "n2", 189)]),
    ("elastic summary padded", "Root Cause (first observed failure): [0]:   time      : 2026-03-01_10:00:00   host      : n2   rank      : 5 (local_rank: 1)   exitcode  : -9 (pid: 4711)   error_file: <N/A>   traceback : Signal 9 (SIGKILL) received by PID 4711\n", "failed", [(5, "n2", 4711)]),
    ("elastic child failed", "*****\n               CHILD PROCESS 4711 (local_rank 3) FAILED (exitcode 1)\n", "failed", [(3, None, 4711)]),
    ("spawn raised", "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 5 terminated with the following error:\nTraceback (most recent call last):\n  File \"/a/train.py\", line 3, in main\n    work()\nValueError: bad batch\n", "failed", [(5, None, None)]),
    ("spawn raised old", "Exception: \n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n  File \"/a/train.py\", line 3, in main\n    work()\nValueError: bad batch\n", "failed", [(1, None, None)]),
    ("spawn unknown signal", "torch.multiprocessing.spawn.ProcessExitedException: process 6 terminated with signal <Unknown signal 35>\n", "failed", [(6, None, None)]),
    ("spawn unknown name", "Exception: process 2 terminated with signal SIGSEGV\n", "failed", [(2, None, None)]),
    ("launch.py old", "subprocess.CalledProcessError: Command '['/usr/bin/python3', '-u', 'train.py', '--local_rank=3', '--lr', '1']' returned non-zero exit status 1.\n", "failed", []),
    # DeepSpeed
    ("deepspeed cut", "[2026-03-01 10:00:00,000] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 11\n[2026-03-01 10:00:00,000] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 12\n[2026-03-01 10:00:01,000] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python3', '-u', 'train.py', '--local_rank=1', '--a\n", "failed", []),
    ("deepspeed pdsh tag", "node2: [2026-03-01 10:00:01,000] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python3', '-u', 'train.py', '--local_rank=7'] exits with return code = -9\n", "failed", [(None, "node2", None)]),
    ("pdsh exit", "pdsh@head: node2: ssh exited with exit code 247\n", "failed", [(None, "node2", None)]),
    # Lightning, Composer, Paddle, ColossalAI, Determined
    ("lightning child", "[rank: 3] Child process with PID 4711 terminated with code 1. Forcefully terminating all other processes to avoid zombies \U0001f9df\n", "failed", [(3, None, 4711)]),
    ("lightning child no tag", "Child process with PID 4711 terminated with code -9. Forcefully terminating all other processes to avoid zombies\n", "failed", [(None, None, 4711)]),
    ("composer", "ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7.\n", "failed", [(2, None, None)]),
    ("composer dated", "2026-03-01 10:00:00,123: rank0[11][MainThread]: ERROR: composer.cli.launcher: Rank 5 crashed with exit code 1.\n", "failed", [(5, None, None)]),
    ("paddle abort", "ERROR 2026-03-01 10:00:00,123 utils.py:643] ABORT!!! Out of all 8 trainers, the trainer process with rank=[3] was aborted. Please check its log.\n", "failed", [(3, None, None)]),
    ("paddle abort several", "ERROR 2026-03-01 10:00:00,123 utils.py:643] ABORT!!! Out of all 8 trainers, the trainer process with rank=[2, 3] was aborted. Please check its log.\n", "failed", [(2, None, None), (3, None, None)]),
    ("paddle abort all", "ERROR 2026-03-01 10:00:00,123 utils.py:643] ABORT!!! Out of all 2 trainers, the trainer process with rank=[0, 1] was aborted. Please check its log.\n", "failed", [(0, None, None), (1, None, None)]),
    ("paddle abort cut", "ERROR 2026-03-01 10:00:00,123 utils.py:643] ABORT!!! Out of all 8 trainers, the trainer process with rank=[3", "failed", [(3, None, None)]),
    ("paddle abort cut within a number", "ERROR 2026-03-01 10:00:00,123 utils.py:643] ABORT!!! Out of all 16 trainers, the trainer process with rank=[1", "failed", []),
    ("paddle abort of an unknown number", "ABORT!!! the trainer process with rank=[2, 3] was aborted. Please check its log.\n", "failed", []),
    ("spawn cut", "torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with\n", "failed", [(3, None, None)]),
    ("colossalai", "Error: failed to run torchrun --nproc_per_node=8 train.py on node3, is localhost: False, exception: Encountered a bad command exit code!\n", "failed", [(None, "node3", None)]),
    ("determined", "[2026-03-01T10:00:00.123Z] <error>   || ERROR: allocation failed: container failed with non-zero exit code: 137 (exit code 137)\n", "failed", []),
    # Horovod
    ("horovod new", _HOROVOD + "Missing ranks:\n1: [allreduce.grad_0, allreduce.grad_1 ...]\n3: [allreduce.grad_0]\n", "hung", [(1, None, None), (3, None, None)]),
    ("horovod new shutdown", _HOROVOD.replace(": W ", ": E ") + "Missing ranks:\n2!: [allreduce.grad_0]\nOne or more rank (marked by \"!\") is stalled for longer than 120 seconds. Will shutdown.\n", "hung", [(2, None, None)]),
    ("horovod 0.19", _HOROVOD + "Stalled ranks:\n1: [allreduce.grad_0, \nallreduce.grad_1 ...]\n", "hung", [(1, None, None)]),
    ("horovod by a pod's log", "".join(f"2026-01-19 07:12:51 UTC master.0 -- [1,0]<stderr>:{line}\n" for line in (_HOROVOD + "Stalled ranks:\n3: [allreduce.grad_0][1,0]<stderr>:\n").splitlines(keepends=True)), "hung", [(3, None, None)]),
    ("horovod new tagged", "".join("[1,0]<stderr>:" + line for line in (_HOROVOD + "Missing ranks:\n1: [allreduce.grad_0]\n").splitlines(keepends=True)), "hung", [(1, None, None)]),
    ("horovod old", "WARNING: One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds. This may indicate that different ranks are trying to submit different tensors or that only subset of ranks is submitting tensors, which will cause deadlock.\nStalled ops:\nallreduce.grad_0 [missing ranks: 1, 3]\n", "hung", [(1, None, None), (3, None, None)]),
    ("horovodrun", "Process 3 exit with status code 139.\n", "failed", [(3, None, None)]),
    ("horovodrun others", "Terminating remaining workers after failure of Process 3.\n", "failed", [(3, None, None)]),
    ("horovod elastic", "Horovod detected that one or more processes exited with non-zero status, thus causing the job to be terminated. The first process to do so was:\nProcess name: node2[3]\nExit code: 134\n", "failed", [(3, "node2", None)]),
    # Open MPI, PRRTE
    ("orterun 1", 'mpirun noticed that job rank 3 with PID 4711 on node "n2" exited on signal 11.\n', "failed", [(3, "n2", 4711)]),
    ("orterun 2 wrapped", "prterun noticed that process rank 3 with PID 4711 on node n2 exited on\nsignal 11 (Segmentation fault).\n", "failed", [(3, "n2", 4711)]),
    ("orterun abort", "mpirun has exited due to process rank 3 with PID 4711 on\nnode n2 calling \"abort\". This may have caused other processes\n", "failed", [(3, None, 4711)]),
    ("prterun abort", "prterun has exited due to process rank 3 with PID 4711 on node n2 calling\n\"abort\". This may have caused other processes in the application to be\n", "failed", [(3, "n2", 4711)]),
    ("orterun no finalize", "mpiexec has exited due to process rank 3 with PID 0 on\nnode n2 exiting improperly. There are three reasons this could occur:\n", "failed", [(3, None, None)]),
    ("orterun lost", "A critical communication path was lost to:\n\n  My name:      [[1,0],0]\n  Process name: [[1,0],3]\n  Node:         n2\n", "failed", [(None, "n2", None)]),
    ("mpirun redacted", "mpirun noticed that process rank 1 with PID xxxxxx on node xxxxxxxx exited on signal 9 (Killed).\n", "failed", [(1, None, None)]),
    ("elastic event", '{"name": "torchelastic.worker.status.FAILED", "source": "WORKER", "timestamp": 0, "metadata": {"run_id": "48", "global_rank": 1, "group_rank": 1, "worker_id": "30117", "role": "default", "hostname": "node9", "state": "FAILED"}}\n', "failed", [(1, "node9", 30117)]),
    ("daemon lost beside a code", "command terminated with exit code 137\n----\nORTE has lost communication with a remote daemon.\n\nHNP daemon : [[1,0],0] on node n1\nRemote daemon: [[1,0],1] on node n2\n", "failed", [(None, "n2", None)]),
    ("daemon lost up to Open MPI 3.0", 'error: commlib error: got read error (closing "n2/shepherd_ijs/1")\n----\nORTE has lost communication with its daemon located on node:\n\n  hostname:  n2\n\nThis is usually due to either a failure of the TCP network\n', "failed", [(None, "n2", None)]),
    ("daemon lost, cut", "ORTE has lost communication with its daemon located on node:\n\n", "failed", []),
    ("horovod tag", "[1]<stderr>:RuntimeError: ncclCommInitRank failed: unhandled cuda error (run with NCCL_DEBUG=INFO for details)\n", "failed", [(1, None, None)]),
    ("deepspeed kills", "10.0.0.5: [2026-03-01 10:00:00,123] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 311\n10.0.0.5: [2026-03-01 10:00:30,123] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 312\n", "failed", []),
    ("orterun heartbeat", "mpirun failed to receive scheduled heartbeat communications from a remote\nprocess:\n\n  Process name: [[1,0],3]\n  Node:         n2\n", "failed", [(None, "n2", None)]),
    ("orterun memory", "A process exceeded memory limits:\n\n   Process name: [[1,1],3]\n   Node:         n2\n", "failed", [(None, "n2", None)]),
    ("ompi abort", "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD\n  Proc: [[1,1],3]\n  Errorcode: 1\n", "failed", [(3, None, None)]),
    ("ompi error", "[n2:4711] *** An error occurred in MPI_Allreduce\n[n2:4711] *** reported by process [123,3]\n[n2:4711] *** on communicator MPI_COMM_WORLD\n[n2:4711] *** MPI_ERR_OTHER: known error not in list\n[n2:4711] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,\n", "failed", [(3, "n2", 4711)]),
    # MPICH, Intel MPI, MVAPICH
    ("hydra", _BAD + "=   PID 4711 RUNNING AT n2\n=   EXIT CODE: 139\n=   CLEANING UP REMAINING PROCESSES\n" + _BAR, "failed", [(None, "n2", 4711)]),
    ("intel", _BAD + "=   RANK 3 PID 4711 RUNNING AT n2\n=   KILLED BY SIGNAL: 11 (Segmentation fault)\n" + _BAR, "failed", [(3, "n2", 4711)]),
    ("intel exit", _BAD + "=   RANK 3 PID 4711 RUNNING AT n2\n=   EXIT STATUS: 255\n" + _BAR, "failed", [(3, "n2", 4711)]),
    ("hydra string", "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)\n", "failed", []),
    ("mpd", "rank 3 in job 1958  n2_58821   caused collective abort of all ranks\n  exit status of rank 3: killed by signal 9 \n", "failed", [(3, None, None)]),
    ("mpich abort", "Abort(1) on node 3 (rank 3 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process 3\n", "failed", [(3, None, None)]),
    ("mpich abort old", "application called MPI_Abort(MPI_COMM_WORLD, 1) - process 3\n", "failed", [(3, None, None)]),
    ("mpich fatal", "Fatal error in PMPI_Bcast: Other MPI error, error stack:\nAbort(1092879) on node 3 (rank 3 in comm 0): Fatal error in PMPI_Bcast: Other MPI error\n", "failed", [(3, None, None)]),
    ("cray mpich", "MPICH ERROR [Rank 3] [job id 1.0] [Fri Feb  9 07:12:51 2024] [nid24] - Abort(1092879) (rank 3 in comm 0): Fatal error in PMPI_Init: Other MPI error, error stack:\n", "failed", [(3, "nid24", None)]),
    ("mvapich handler", "[n2:mpi_rank_24][error_sighandler] Caught error: Segmentation fault (signal 11)\n", "failed", [(24, "n2", None)]),
    ("mpispawn", "[n2:mpispawn_1][child_handler] MPI process (rank: 3, pid: 4711) terminated with signal 11 -> abort job\n", "failed", [(3, "n2", 4711)]),
    ("mpispawn exit", "[n2:mpispawn_1][child_handler] MPI process (rank: 3, pid: 4711) exited with status 1\n", "failed", [(3, "n2", 4711)]),
    # Slurm
    ("srun exit", "srun: error: n2: task 3: Exited with exit code 1\n", "failed", [(3, "n2", None)]),
    ("srun killed", "srun: error: n2: tasks 2-7: Killed\n", "failed", []),
    ("srun oom", "srun: error: n2: task 3: Out Of Memory\n", "failed", [(3, "n2", None)]),
    ("srun tagged", "3: srun: error: n2: task 5: Segmentation fault (core dumped)\n", "failed", [(5, "n2", None)]),
    ("srun bus", "srun: error: n2: task 5: Bus error\n", "failed", [(5, "n2", None)]),
    ("srun hosts", "srun: error: n[2-3]: tasks 5,9: Aborted (core dumped)\n", "failed", []),
    ("srun hangup", "srun: error: n2: task 5: User defined signal 1\n", "failed", [(5, "n2", None)]),
    ("slurm step failed", "slurmstepd: error: *** STEP 8122.0 ON n2 FAILED (non-zero exit code or other failure mode) ***\n", "failed", []),
    ("slurm task failure", "slurmstepd: error: *** STEP 8122.0 ON n2 CANCELLED AT 2026-03-01T10:00:00 DUE TO TASK FAILURE ***\n", "failed", []),
    ("slurm node failure", "slurmstepd: error: *** STEP 8122.0 ON n2 CANCELLED AT 2026-03-01T10:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n", "failed", []),
    ("slurm named node failure", "slurmstepd: error: *** STEP 8122.0 CANCELLED AT 2026-03-01T10:00:00 DUE TO NODE n2 FAILURE ***\n", "failed", [(None, "n2", None)]),
    ("srun node failure", "srun: error: Node failure on n2\n", "failed", [(None, "n2", None)]),
    ("srun launch failed", "srun: error: Task launch for StepId=8122.0 failed on node n2: Socket timed out on send/recv operation\n", "failed", [(None, "n2", None)]),
    ("srun launch failed old", "srun: error: Task launch for 8122.0 failed on node n2: Invalid job credential\n", "failed", [(None, "n2", None)]),
    ("slurm oom", "slurmstepd: error: Detected 1 oom_kill event in StepId=8122.0. Some of the step tasks have been OOM Killed.\n", "failed", []),
    ("slurm memory 14", "slurmstepd: error: Step 8122.0 exceeded memory limit (99 > 10), being killed\n", "failed", []),
    # PBS, LSF, Flux, Cray
    ("pbs walltime", "=>> PBS: job killed: walltime 3630 exceeded limit 3600\n", "inconclusive", []),
    ("pbs memory", "=>> PBS: job killed: mem 99kb exceeded limit 10kb\n", "failed", []),
    ("lsf memory", "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\nExited with exit code 137.\n", "failed", []),
    ("lsf time", "TERM_RUNLIMIT: job killed after reaching LSF run time limit.\nExited with exit code 140.\n", "inconclusive", []),
    ("jsrun", "ERROR:  One or more process (first noticed rank 3) terminated with signal 11 (core dumped)\n", "failed", [(3, None, None)]),
    ("jsrun exit", "ERROR:  One or more process (first noticed rank 3) terminated with exit code 1\n", "failed", [(3, None, None)]),
    ("flux", "3.340s: flux-shell[0]: FATAL: doom: python: task rank 3 on host n2 failed (Segmentation fault) and exit-on-error is set\n", "failed", [(3, "n2", None)]),
    ("flux timeout", "3.340s: flux-shell[0]: FATAL: doom: python: task rank 3 on host n2 exited (Exit 2) and exit-timeout=30s has expired\n", "failed", [(3, "n2", None)]),
    ("flux old", "3.340s: flux-shell[0]: FATAL: doom: rank 3 exited and exit-timeout=30s has expired\n", "failed", [(3, None, None)]),
    ("flux old host", "3.340s: flux-shell[0]: FATAL: doom: rank 3 on host n2 failed and exit-on-error is set\n", "failed", [(3, "n2", None)]),
    ("flux node", "3.340s: job.exception type=exec severity=0 node failure on n2 (rank 3)\n", "failed", [(None, "n2", None)]),
    ("flux tasks", "flux-job: task(s) exited with exit code 1\n", "failed", []),
    ("pbs job total", "=>> PBS: job killed: vmem job total 99 kb exceeded limit 10 kb\n", "failed", []),
    ("pbs cpus", "=>> PBS: job killed: ncpus 39.46 exceeded limit 32 (sum)\n", "inconclusive", []),
    ("lsf admin", "TERM_ADMIN: job killed by root or LSF administrator.\nExited with exit code 130.\n", "inconclusive", []),
    ("pals", "n2: rank 3 exited with code 1\n", "failed", [(3, "n2", None)]),
    ("pals signal", "n2: rank 3 died from signal 11 and dumped core\n", "failed", [(3, "n2", None)]),
    ("pals mpiexec", "mpiexec: n2: rank 3 died from signal 9\n", "failed", [(3, "n2", None)]),
    ("pals others end", "n1: rank 3 exited with code 1\nn1: rank 2 died from signal 15\nn2: rank 5 exited with code 143\n", "failed", [(3, "n1", None)]),
    ("pals ended", "n1: rank 2 died from signal 15\n", "inconclusive", []),
    ("alps rank", "_pmiu_daemon(SIGCHLD): [NID 00012] [c7-1c2s14n2] [Sun Mar  1 10:00:00 2026] PE RANK 30 exit signal Segmentation fault\n[NID 00012] 2026-03-01 10:00:00 Apid 4711: initiated application termination\n", "failed", [(30, "00012", None)]),
    ("alps", "[NID 00012] 2026-03-01 10:00:00 Apid 4711: initiated application termination\nApplication 4711 exit signals: Segmentation fault\n", "failed", [(None, "00012", None)]),
    ("alps oom", "[NID 00012] 2026-03-01 10:00:00 Apid 4711: OOM killer terminated this process.\n", "failed", [(None, "00012", None)]),
    # Kubernetes, cloud services
    ("k8s pod", "trainer-worker-3   0/1     OOMKilled   0          5m\n", "failed", [(None, "trainer-worker-3", None)]),
    ("k8s pod error", "trainer-worker-3   0/1     Error       0          5m\n", "failed", [(None, "trainer-worker-3", None)]),
    ("k8s pod evicted", "trainer-worker-3   0/1     Evicted     0          5m\n", "failed", [(None, "trainer-worker-3", None)]),
    ("k8s pod crash loop", "trainer-worker-3   0/1     CrashLoopBackOff     7          5m\n", "failed", [(None, "trainer-worker-3", None)]),
    ("kubeflow", "PyTorchJob llama is failed because 1 Worker replica(s) failed.\n", "failed", []),
    ("kubeflow pod", 'Normal  ExitedWithCode  5m  pytorchjob-controller  Pod: default.llama-worker-3 exited with code 137\n', "failed", [(None, "llama-worker-3", None)]),
    ("k8s event", "Warning  BackOff    5s    kubelet    Back-off restarting failed container pytorch in pod llama-worker-3_default(1234)\n", "failed", [(None, "llama-worker-3", None)]),
    ("compose", "worker-3 exited with code 139\n", "failed", [(None, "worker-3", None)]),
    ("sagemaker", 'ErrorMessage "RuntimeError: bad batch"\nsagemaker_training.errors.ExecuteUserScriptError: ExecuteUserScriptError:\nExitCode 1\n', "failed", []),
    ("sagemaker failure", "2026-03-01 10:00:00,123 sagemaker-training-toolkit ERROR    Reporting training FAILURE\n2026-03-01 10:00:00,123 sagemaker-training-toolkit ERROR    Encountered exit_code 1\n", "failed", []),
    ("skypilot", "ERROR: Job 1 failed with return code list: [137, 1, 137, 137] (A worker failed with return code 1, SkyPilot cleaned up the processes on other nodes with return code 137)\n", "failed", []),
    ("skypilot setup", "ERROR: Job 1's setup failed. Failed workers: (pid=1840, returncode=1). See error logs above for more details.\n", "failed", [(None, None, 1840)]),
    ("dstack", "Run failed with error code CONTAINER_EXITED_WITH_ERROR.\n", "failed", []),
    ("azure", "ExecutionFailed: [{\"exit_codes\": 1, \"error_message\": \"Execution failed. User process 'python' exited with status code 1.\", \"process\": \"python\"}]\n", "failed", []),
    # Ray
    ("ray worker", "(raylet) " + _RAY + "RayTask ID: ffff Worker ID: 75 Node ID: aa Worker IP address: 10.0.0.3 Worker port: 10004 Worker PID: 3943 Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.\n", "failed", [(None, "10.0.0.3", 3943)]),
    ("ray crashed", "ray.exceptions.WorkerCrashedError: The worker died unexpectedly while executing this task. Check python-core-worker-*.log files for more information.\n", "failed", []),
    ("ray oom", "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.0.0.3, ID: 8c) where the task (actor ID: 41, name=W.__init__, pid=548, memory used=12.18GB) was running was 21.91GB / 33.28GB (0.65), which exceeds the memory usage threshold of 0.65.\n", "failed", [(None, "10.0.0.3", 548)]),
    ("ray node died", "(raylet) The node with node id: 3f and address: 10.0.0.3 and node name: 10.0.0.3 has been marked dead because the detector has missed too many heartbeats from it. This can happen when a raylet crashes unexpectedly\n", "failed", [(None, "10.0.0.3", None)]),
    ("ray actor node", "The actor is dead because its node has died. Node Id: 3f\n\tthe actor's node was terminated unexpectedly: health check failed due to missing too many heartbeats\n", "failed", []),
    ("ray local raylet", "ray.exceptions.LocalRayletDiedError: The task's local raylet died. Check raylet.out for more information.\n", "failed", []),
    ("ray raylet fatal", "[2026-03-01 10:00:00,123 C 11 11] (raylet) node_manager.cc:173: This node has beem marked as dead.\n", "failed", [(None, None, 11)]),
    ("ray node died error", "ray.exceptions.NodeDiedError: Task failed due to the node (where this task was running)  was dead or unavailable.\n\nThe node IP: 10.0.0.3, node ID: 3f.\n", "failed", [(None, "10.0.0.3", None)]),
    # Dask, Spark, GNU parallel
    ("dask killed", "distributed.scheduler.KilledWorker: Attempted to run task 'dispatched_train-3' on 1 different workers, but all those workers died while running it. The last worker that attempt to run the task was tcp://10.0.0.3:40123. Inspecting worker logs is often a good next step to diagnose what went wrong.\n", "failed", [(None, "10.0.0.3", None)]),
    ("dask nanny", "distributed.nanny - INFO - Worker process 4711 was killed by signal 9\n", "failed", [(None, None, 4711)]),
    ("dask memory", "distributed.worker.memory - WARNING - Worker tcp://10.0.0.3:40123 (pid=4711) exceeded 95% memory budget. Restarting...\n", "failed", [(None, "10.0.0.3", 4711)]),
    ("spark executor", "26/03/01 10:00:00 ERROR TaskSchedulerImpl: Lost executor 3 on 10.0.0.3: Remote RPC client disassociated. Likely due to containers exceeding thresholds, or network issues.\n", "failed", [(None, "10.0.0.3", None)]),
    ("spark exit", "26/03/01 10:00:00 ERROR TaskSchedulerImpl: Lost executor 1 on 10.0.0.3: Command exited with code 137\n", "failed", [(None, "10.0.0.3", None)]),
    ("spark cut", "26/03/01 10:00:00 ERROR TaskSchedulerImpl: Lost executor 12 on 10.0.0.3:\nThe executor with id 12 exited with exit code -1(unexpected).\n", "failed", [(None, "10.0.0.3", None)]),
    ("spark barrier", "org.apache.spark.SparkException: Job aborted due to stage failure: Could not recover from a failed barrier ResultStage. Most recent failure reason: Stage failed because barrier task ResultTask(0, 3) finished unsuccessfully.\n", "failed", [(3, None, None)]),
    ("parallel", "parallel: This job failed:\npython train.py 3\n", "failed", []),
    # NVRx
    ("ft_launcher heartbeat", "[2026-03-01 10:00:00,123] [WARNING] [RankMonitorServer4711@n2:3] [Cycle 0] Did not get subsequent heartbeat. Waited 300.00 seconds.\n", "hung", []),
    ("ft_launcher initial", "[2026-03-01 10:00:00,123] [WARNING] [RankMonServer4711@n2:3] Did not get initial heartbeat. Waited 600.00 seconds.\n", "hung", []),
    ("ft_launcher section", "[2026-03-01 10:00:00,123] [WARNING] [RankMonServer4711@n2:3] [Cycle 0] Section 'step' has been open for 300.00 seconds. Timeout is 200.00 seconds.\n", "hung", []),
    ("ft_launcher out of section", "[2026-03-01 10:00:00,123] [WARNING] [RankMonServer4711@n2:3] Was out of section for 300.00 seconds. Timeout is 200.00 seconds.\n", "hung", []),
    ("ft_launcher codes", "Some rank(s) exited with non-zero exit code: {3: ProcessFailure(local_rank=3, pid=4711, exitcode=-9, error_file='<N/A>')}. Agent's exit code = 1\n", "failed", [(3, None, 4711)]),
    # Shells, systemd, the kernel
    ("bash killed", "./run.sh: line 12: 4711 Killed                  python train.py\n", "failed", [(None, None, 4711)]),
    ("bash segv", "run.sh: line 12:  4711 Segmentation fault      (core dumped) python train.py\n", "failed", [(None, None, 4711)]),
    ("bash fpe", "run.sh: line 12:  4711 Floating point exception(core dumped) python train.py\n", "failed", [(None, None, 4711)]),
    ("bash job", "[1]+  Killed                  python train.py\n", "failed", []),
    ("bash job pid", "[2]  + 4711 segmentation fault (core dumped)  python train.py\n", "failed", [(None, None, 4711)]),
    ("oomd", "systemd-oomd[811]: Killed /user.slice/user-1000.slice/session-3.scope due to memory pressure for /user.slice being 65.12% > 50.00% for > 20s\n", "failed", []),
    ("systemd oom", "systemd[1]: train.service: A process of this unit has been killed by the OOM killer.\n", "failed", []),
    ("systemd main", "systemd[1]: train.service: Main process exited, code=killed, status=9/KILL\n", "failed", []),
    ("kernel oom", "Mar  1 10:00:00 n2 kernel: [1234.5] Out of memory: Killed process 4711 (python) total-vm:9kB, anon-rss:8kB, file-rss:0kB\n", "failed", [(None, None, 4711)]),
    ("kernel oom 5", "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=abc,mems_allowed=0-1,oom_memcg=/a,task_memcg=/a,task=python,pid=4711,uid=0\n", "failed", [(None, None, 4711)]),
    ("kernel segfault", "Mar  1 10:00:00 n2 kernel: python[4711]: segfault at 0 ip 00007f sp 00007f error 4 in libnccl.so.2[7f+1]\n", "failed", [(None, None, 4711)]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "verdict", "who"), [row[1:] for row in FORMATS], ids=[row[0] for row in FORMATS])
def test_a_report_of_a_launcher_names_the_process_as_far_as_its_text_does(
    text: str, verdict: str, who: list[Who], tmp_path: Path
) -> None:
    (tmp_path / "job.log").write_text("step 1 loss 2.0\n" + text)
    report = psmkit.analyze([str(tmp_path / "job.log")])
    assert (report.verdict, [(c.rank, c.host, c.pid) for c in report.culprits]) == (verdict, who), report.reason


_POD = "{}   0/1   {}   0   12m\n"
_INTEL = "=   RANK {rank} PID {pid} RUNNING AT n2\n=   KILLED BY SIGNAL: {signal} (x)\n"
#: Several processes, or none that failed: name, text, verdict, who.
SEVERAL: list[tuple[str, str, str, list[Who]]] = [
    ("killed by the launcher", "".join(_BAD + _INTEL.format(rank=r, pid=47 + r, signal=11 if r == 2 else 9) for r in range(4)), "failed", [(2, "n2", 49)]),
    ("all killed", "".join(_BAD + _INTEL.format(rank=r, pid=47 + r, signal=9) for r in range(2)), "failed", []),
    ("all abort", "".join(f"Abort(1) on node {r} (rank {r} in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process {r}\n" for r in range(3)), "failed", []),
    ("ended after it", "n2: rank 0 died from signal 15\nn2: rank 3 died from signal 11\nn2: rank 1 died from signal 9\n", "failed", [(3, "n2", None)]),
    ("newest first", "=   EXIT CODE: 139\n=   PID 4711 RUNNING AT n2\n" + _BAD, "failed", [(None, "n2", 4711)]),
    ("on one line", _BAD.rstrip() + " =   RANK 3 PID 4711 RUNNING AT n2 =   KILLED BY SIGNAL: 11 (Segmentation fault) ===\n", "failed", [(3, "n2", 4711)]),
    ("pods, one for its memory", _POD.format("w-0", "Error") + _POD.format("w-1", "OOMKilled") + _POD.format("w-2", "Error"), "failed", [(None, "w-1", None)]),
    ("pods, one evicted", _POD.format("w-0", "Error") + _POD.format("w-1", "Evicted"), "failed", [(None, "w-1", None)]),
    ("pods, no reason", _POD.format("w-0", "Error") + _POD.format("w-1", "Error"), "failed", []),
    ("good ends", "Process 3 exit with status code 0.\nn2: rank 3 exited with code 0\n", "inconclusive", []),
    ("a node without a failure", "   Node:         n2\nProcess 3 exit with status code 0.\n", "inconclusive", []),
    ("a code without a process", "[rank0]: step 2 loss 1.9\nExit code: 3\n", "inconclusive", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "verdict", "who"), [row[1:] for row in SEVERAL], ids=[row[0] for row in SEVERAL])
def test_of_several_processes_only_the_one_that_the_launcher_singles_out_is_named(
    text: str, verdict: str, who: list[Who], tmp_path: Path
) -> None:
    (tmp_path / "job.log").write_text(text)
    report = psmkit.analyze([str(tmp_path / "job.log")])
    assert (report.verdict, [(c.rank, c.host, c.pid) for c in report.culprits]) == (verdict, who), report.reason
