/* A forked child uses what its parent has registered, in a session of its own, and what it gives back is not its parent's. Exits with 0 if all is as it
 * should be.
 *
 *     forked /mnt/glow/file */
#include "common.h"
#include <sys/wait.h>

static void child(struct hf3fs_ior *parents, struct hf3fs_iov *iov, int fd, int kept) {
  struct hf3fs_ior own;
  CHECK(hf3fs_iorcreate(&own, mount, ENTRIES, false, 0, -1) == 0);
  write_one(&own, iov, fd, 'c');
  write_one(&own, iov, -kept, 'd');
  CHECK(hf3fs_prep_io(parents, iov, false, iov->base, fd, 0, BLOCK, NULL) == -EINVAL);
  struct hf3fs_cqe cqe;
  struct timespec past = {0, 0};
  CHECK(hf3fs_submit_ios(parents) == -EINVAL);
  CHECK(hf3fs_wait_for_ios(parents, &cqe, 1, 1, &past) == -EINVAL && hf3fs_io_entries(parents) == ENTRIES);
  hf3fs_iordestroy(&own);
  hf3fs_iordestroy(parents);
  hf3fs_iovdestroy(iov);
  hf3fs_dereg_fd(fd);
  exit(0);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  int fd = begin(argv[1], 50);
  struct hf3fs_iov iov;
  struct hf3fs_ior writer;
  int status;
  make(&iov, &writer);
  int kept = hf3fs_reg_fd(fd, 0);
  CHECK(kept <= 0);
  write_one(&writer, &iov, fd, 'a');
  CHECK(hf3fs_prep_io(&writer, &iov, false, iov.base, fd, BLOCK, BLOCK, NULL) >= 0); /* not submitted when it forks */
  pid_t forked = fork();
  CHECK(forked >= 0);
  if (forked == 0) child(&writer, &iov, fd, kept);
  CHECK(waitpid(forked, &status, 0) == forked && status == 0);
  CHECK(first_byte("any") == 'd');
  struct hf3fs_cqe cqe;
  CHECK(hf3fs_wait_for_ios(&writer, &cqe, 1, 1, NULL) == 1 && cqe.result == BLOCK);
  write_one(&writer, &iov, fd, 'e');
  CHECK(first_byte("any") == 'e');
  hf3fs_dereg_fd(fd);
  return end(&iov, &writer);
}
