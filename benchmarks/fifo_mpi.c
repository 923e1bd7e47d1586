/* Bytes from rank 0 to rank 1 by MPI, each on a processor of its own; the answer has none. One line a turn: mpi
 * SECONDS, of one way.
 *
 *   mpirun -n 2 fifo_mpi BYTES TURNS ROUNDS      small messages there and back, ROUNDS in a turn */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc < 4) return 2;
    size_t bytes = strtoull(argv[1], NULL, 10);
    int turns = atoi(argv[2]), rounds = atoi(argv[3]), rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)rank % (size_t)sysconf(_SC_NPROCESSORS_ONLN), &set);
    sched_setaffinity(0, sizeof set, &set);
    char *data = malloc(bytes);
    if (!data) MPI_Abort(MPI_COMM_WORLD, 1);
    memset(data, rank, bytes);
    int back = rounds > 1 ? (int)bytes : 0;
    for (int turn = -1; turn < turns; turn++) { /* the first one is not counted */
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = MPI_Wtime();
        for (int i = 0; i < rounds; i++) {
            if (rank == 0) {
                MPI_Send(data, (int)bytes, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
                MPI_Recv(data, back, MPI_CHAR, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            } else {
                MPI_Recv(data, (int)bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                MPI_Send(data, back, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
            }
        }
        if (rank == 0 && turn >= 0) printf("mpi %.9f\n", (MPI_Wtime() - begin) / rounds / (rounds > 1 ? 2 : 1));
    }
    free(data);
    MPI_Finalize();
    return 0;
}
