/* omp_wait.h - how the threads that compute wait for each other in a server.
 *
 * ggml's threads meet several hundred times in a step. libgomp lets them spin for about 0.3 million
 * rounds before they sleep, which is best when nothing else runs. A server has other threads, and
 * often its clients on the same machine: whenever one of these gets a processor, a thread spins its
 * whole time slice for another that cannot run. With a short spin it sleeps instead.
 *
 * libgomp reads its settings when it is loaded, so the program has to be started again to change
 * them.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_OMP_WAIT_H
#define QUIRE_CLI_OMP_WAIT_H

/* Unless the environment says something about it (OMP_WAIT_POLICY, GOMP_SPINCOUNT), set a short
 * spin and execute the program again in this process. Returns when there is nothing to do, or when
 * that was not possible: the program works all the same. argv: as main() got it. */
void quire_omp_wait_settle(char *const *argv);

#endif /* QUIRE_CLI_OMP_WAIT_H */
