/* A process whose other threads use the library forks: what the child has of the library's locks is not locked by threads that it has not. Exits with 0 if all
 * is as it should be.
 *
 *     forked_threads /mnt/glow/file */
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

enum { FORKS = 100, THREADS = 3 };

static atomic_int over;
static struct hf3fs_iov iov;
static int registered;

/* The registry is looked at for each operation; it is one too many, or is prepared and never submitted. */
static void *prepares(void *ring) {
  while (!atomic_load(&over)) hf3fs_prep_io(ring, &iov, false, iov.base, registered, 0, BLOCK, NULL);
  return NULL;
}

static void child(struct hf3fs_ior *parents) {
  alarm(5);
  CHECK(hf3fs_io_entries(parents) == ENTRIES);
  hf3fs_dereg_fd(99999);
  _exit(0);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  struct hf3fs_ior writer, rings[THREADS];
  pthread_t threads[THREADS];
  registered = begin(argv[1], 50);
  make(&iov, &writer);
  CHECK(hf3fs_reg_fd(registered, 0) <= 0);
  for (int i = 0; i < THREADS; i++) {
    CHECK(hf3fs_iorcreate(&rings[i], mount, ENTRIES, false, 0, -1) == 0);
    CHECK(pthread_create(&threads[i], NULL, prepares, &rings[i]) == 0);
  }
  for (int i = 0; i < FORKS; i++) {
    int status;
    pid_t forked = fork();
    CHECK(forked >= 0);
    if (forked == 0) child(&rings[i % THREADS]);
    CHECK(waitpid(forked, &status, 0) == forked && status == 0);
  }
  atomic_store(&over, 1);
  for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  write_one(&writer, &iov, registered, 'a');
  for (int i = 0; i < THREADS; i++) hf3fs_iordestroy(&rings[i]);
  hf3fs_dereg_fd(registered);
  return end(&iov, &writer);
}
