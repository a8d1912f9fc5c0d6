/* A forked child uses what its parent has registered, in a session of its own, and what it gives back is not its parent's. Exits with 0 if all is as it
 * should be.
 *
 *     forked /mnt/glow/file */
#include <errno.h>
#include <fcntl.h>
#include <hf3fs_usrbio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                          \
  do {                                                                       \
    if (!(what)) {                                                           \
      fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); \
      exit(1);                                                               \
    }                                                                        \
  } while (0)

enum { BLOCK = 4096, ENTRIES = 16 };

static char mount[256];

static void write_one(struct hf3fs_ior *ior, struct hf3fs_iov *iov, int fd, char byte) {
  struct hf3fs_cqe cqe;
  memset(iov->base, byte, BLOCK);
  CHECK(hf3fs_prep_io(ior, iov, false, iov->base, fd, 0, BLOCK, NULL) >= 0);
  CHECK(hf3fs_submit_ios(ior) == 0 && hf3fs_wait_for_ios(ior, &cqe, 1, 1, NULL) == 1);
  CHECK(cqe.result == BLOCK);
}

static void child(struct hf3fs_ior *parents, struct hf3fs_iov *iov, int fd, int kept) {
  struct hf3fs_ior own;
  CHECK(hf3fs_iorcreate(&own, mount, ENTRIES, false, 0, -1) == 0);
  write_one(&own, iov, fd, 'c');
  write_one(&own, iov, -kept, 'd');
  CHECK(hf3fs_prep_io(parents, iov, false, iov->base, fd, 0, BLOCK, NULL) == -EINVAL);
  hf3fs_iordestroy(&own);
  hf3fs_iordestroy(parents);
  hf3fs_iovdestroy(iov);
  hf3fs_dereg_fd(fd);
  exit(0);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  alarm(50); /* A deadlock ends, too. */
  int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
  CHECK(fd >= 0 && hf3fs_extract_mount_point(mount, sizeof mount, argv[1]) > 0);
  struct hf3fs_iov iov;
  struct hf3fs_ior writer;
  char byte;
  int status;
  CHECK(hf3fs_iovcreate(&iov, mount, BLOCK, 0, -1) == 0);
  CHECK(hf3fs_iorcreate(&writer, mount, ENTRIES, false, 0, -1) == 0);
  int kept = hf3fs_reg_fd(fd, 0);
  CHECK(kept <= 0);
  write_one(&writer, &iov, fd, 'a');
  pid_t forked = fork();
  CHECK(forked >= 0);
  if (forked == 0) child(&writer, &iov, fd, kept);
  CHECK(waitpid(forked, &status, 0) == forked && status == 0);
  CHECK(pread(fd, &byte, 1, 0) == 1 && byte == 'd');
  write_one(&writer, &iov, fd, 'e');
  CHECK(pread(fd, &byte, 1, 0) == 1 && byte == 'e');
  hf3fs_dereg_fd(fd);
  hf3fs_iordestroy(&writer);
  hf3fs_iovdestroy(&iov);
  puts("ok");
  return 0;
}
