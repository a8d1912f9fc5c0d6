/* What is registered stays what it was registered as: descriptors that were closed and whose numbers are used again, two threads on one ring,
 * several holders of one buffer. Exits with 0 if all is as it should be.
 *
 *     numbers /mnt/glow/file */
#include "common.h"
#include <pthread.h>
#include <sys/wait.h>

enum { OPERATIONS = 20000 };

/* A number of a descriptor that was closed stands for its file until dereg_fd, whatever the kernel gives that number to. */
static void closed_descriptors(struct hf3fs_ior *ior, struct hf3fs_iov *iov) {
  int a = open_file("a");
  CHECK(hf3fs_reg_fd(a, 0) <= 0);
  int b = open_file("b");
  CHECK(close(a) == 0);
  int kept = hf3fs_reg_fd(b, 0);
  CHECK(kept <= 0 && -kept != a);
  write_one(ior, iov, a, 'a');
  write_one(ior, iov, b, 'b');
  CHECK(first_byte("a") == 'a' && first_byte("b") == 'b');
  write_one(ior, iov, kept, 'B');
  CHECK(first_byte("a") == 'a' && first_byte("b") == 'B');
  hf3fs_dereg_fd(a);
  CHECK(hf3fs_prep_io(ior, iov, false, iov->base, a, 0, BLOCK, NULL) == -EBADF);
  write_one(ior, iov, b, 'c');
  hf3fs_dereg_fd(b);
  CHECK(close(b) == 0);
}

static struct hf3fs_ior *shared;
static struct hf3fs_iov *memory;
static int shared_fd;

static void *submitter(void *nothing) {
  for (int i = 0; i < OPERATIONS;) {
    int index = hf3fs_prep_io(shared, memory, true, memory->base, shared_fd, 0, 1, (void *)(size_t)(i + 1));
    CHECK(index >= 0 || index == -EAGAIN);
    if (index >= 0) i++;
    CHECK(hf3fs_submit_ios(shared) == 0);
  }
  return nothing;
}

/* One thread prepares and submits, another one waits; neither for the other. */
static void two_threads(struct hf3fs_iov *iov) {
  static char seen[OPERATIONS + 1];
  struct hf3fs_ior reader;
  shared_fd = open_file("b");
  CHECK(pwrite(shared_fd, "x", 1, 0) == 1 && hf3fs_reg_fd(shared_fd, 0) <= 0);
  CHECK(hf3fs_iorcreate(&reader, mount, ENTRIES, true, 0, -1) == 0);
  shared = &reader;
  memory = iov;
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, submitter, NULL) == 0);
  for (int done = 0; done < OPERATIONS;) {
    struct hf3fs_cqe cqes[ENTRIES];
    int n = hf3fs_wait_for_ios(&reader, cqes, ENTRIES, 1, NULL);
    CHECK(n > 0);
    for (int i = 0; i < n; i++) {
      size_t number = (size_t)cqes[i].userdata;
      CHECK(cqes[i].result == 1 && number >= 1 && number <= OPERATIONS && !seen[number]);
      seen[number] = 1;
    }
    done += n;
  }
  CHECK(pthread_join(thread, NULL) == 0);
  hf3fs_iordestroy(&reader);
  hf3fs_dereg_fd(shared_fd);
  CHECK(close(shared_fd) == 0);
}

/* A buffer is there as long as one of those who hold it. */
static void holders(struct hf3fs_iov *iov) {
  struct hf3fs_ior reader;
  int fd = open_file("c");
  CHECK(pwrite(fd, "y", 1, 0) == 1 && hf3fs_reg_fd(fd, 0) <= 0);
  CHECK(hf3fs_iorcreate(&reader, mount, ENTRIES, true, 0, -1) == 0);
  struct hf3fs_iov second, wrapped;
  int before = mappings();
  CHECK(hf3fs_iovopen(&second, (uint8_t *)iov->id, mount, BLOCK, 0, -1) == 0);
  CHECK(hf3fs_iovwrap(&wrapped, second.base, (uint8_t *)iov->id, mount, BLOCK, 0, -1) == 0);
  CHECK(mappings() == before + 1);
  struct hf3fs_cqe cqe;
  CHECK(hf3fs_prep_io(&reader, &wrapped, true, wrapped.base, fd, 0, 1, NULL) >= 0);
  CHECK(hf3fs_submit_ios(&reader) == 0 && hf3fs_wait_for_ios(&reader, &cqe, 1, 1, NULL) == 1);
  CHECK(cqe.result == 1 && wrapped.base[0] == 'y' && iov->base[0] == 'y');
  hf3fs_iovdestroy(&second);
  CHECK(mappings() == before);
  hf3fs_iovdestroy(&wrapped);
  CHECK(hf3fs_prep_io(&reader, iov, true, iov->base, fd, 0, 1, NULL) >= 0);
  CHECK(hf3fs_submit_ios(&reader) == 0 && hf3fs_wait_for_ios(&reader, &cqe, 1, 1, NULL) == 1);
  CHECK(cqe.result == 1);
  hf3fs_iordestroy(&reader);
  hf3fs_dereg_fd(fd);
  CHECK(close(fd) == 0);
}

/* Another process, which knows nothing of the buffer but what it reads here, wraps it and lets go again. */
static void stranger(const int tell[2]) {
  uint8_t id[16];
  static char memory[BLOCK];
  CHECK(close(tell[1]) == 0);
  if (read(tell[0], id, sizeof id) != sizeof id) exit(1); /* The other one has failed. */
  int before = mappings();
  for (int i = 0; i < 3; i++) {
    struct hf3fs_iov wrapped;
    CHECK(hf3fs_iovwrap(&wrapped, memory, id, mount, BLOCK, 0, -1) == 0);
    CHECK(mappings() == before + 1);
    hf3fs_iovdestroy(&wrapped);
    CHECK(mappings() == before);
  }
  /* One that was wrapped while we had the buffer ourselves ends, and another one that was wrapped since stays. */
  struct hf3fs_iov held, early, late;
  CHECK(hf3fs_iovopen(&held, id, mount, BLOCK, 0, -1) == 0);
  CHECK(hf3fs_iovwrap(&early, held.base, id, mount, BLOCK, 0, -1) == 0);
  hf3fs_iovdestroy(&held);
  CHECK(mappings() == before);
  CHECK(hf3fs_iovwrap(&late, memory, id, mount, BLOCK, 0, -1) == 0);
  hf3fs_iovdestroy(&early);
  hf3fs_iovdestroy(&held);
  CHECK(mappings() == before + 1);
  hf3fs_iovdestroy(&late);
  hf3fs_iovdestroy(&late);
  CHECK(mappings() == before);
  exit(0);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  CHECK(close(begin(argv[1], 50)) == 0);
  struct hf3fs_iov iov;
  struct hf3fs_ior writer;
  int tell[2], status;
  CHECK(pipe(tell) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) stranger(tell);
  CHECK(close(tell[0]) == 0);
  make(&iov, &writer);
  closed_descriptors(&writer, &iov);
  two_threads(&iov);
  holders(&iov);
  CHECK(write(tell[1], iov.id, sizeof iov.id) == sizeof iov.id);
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  return end(&iov, &writer);
}
