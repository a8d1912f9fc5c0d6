/* A program as it is written for 3FS: writes a file through a ring and reads it back in batches; exits with 0 if all is as it should be.
 *
 *     cc -o hf3fs hf3fs.c -I... -L... -lhf3fs_api_shared && ./hf3fs /mnt/glow/file */
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

enum { BLOCK = 16384, BLOCKS = 64 };

/* Submits BLOCKS operations of one block each, backwards, and takes all their results. */
static void run(struct hf3fs_ior *ior, struct hf3fs_iov *iov, bool read, int fd) {
  struct hf3fs_cqe cqes[BLOCKS];
  bool seen[BLOCKS] = {false};
  for (int i = BLOCKS - 1; i >= 0; i--)
    CHECK(hf3fs_prep_io(ior, iov, read, iov->base + i * BLOCK, fd, (size_t)i * BLOCK, BLOCK, &seen[i]) >= 0);
  CHECK(hf3fs_prep_io(ior, iov, read, iov->base, fd, 0, BLOCK, NULL) == -EAGAIN);
  CHECK(hf3fs_submit_ios(ior) == 0);
  for (int done = 0; done < BLOCKS;) {
    int n = hf3fs_wait_for_ios(ior, cqes, BLOCKS, BLOCKS - done, NULL);
    CHECK(n > 0);
    for (int i = 0; i < n; i++) {
      CHECK(cqes[i].result == BLOCK && cqes[i].index >= 0 && cqes[i].index < BLOCKS);
      bool *mine = (bool *)cqes[i].userdata;
      CHECK(!*mine);
      *mine = true;
    }
    done += n;
  }
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
  CHECK(fd >= 0 && hf3fs_is_hf3fs(fd) && !hf3fs_is_hf3fs(0));
  char mount[256];
  int length = hf3fs_extract_mount_point(mount, sizeof mount, argv[1]);
  CHECK(length == (int)strlen(mount) + 1 && hf3fs_extract_mount_point(mount, sizeof mount, "/proc") == -1);

  struct hf3fs_iov iov;
  struct hf3fs_ior writer, reader;
  CHECK(hf3fs_iovcreate(&iov, mount, BLOCK * BLOCKS, 0, -1) == 0);
  CHECK(hf3fs_iorcreate(&writer, mount, BLOCKS, false, 0, -1) == 0);
  CHECK(hf3fs_iorcreate4(&reader, mount, BLOCKS, true, BLOCKS / 4, 100, -1, HF3FS_IOR_ALLOW_READ_UNCOMMITTED) == 0);
  CHECK(hf3fs_io_entries(&reader) == BLOCKS);

  CHECK(hf3fs_prep_io(&writer, &iov, false, iov.base, fd, 0, BLOCK, NULL) == -EBADF);
  int kept = hf3fs_reg_fd(fd, 0);
  CHECK(kept <= 0 && hf3fs_reg_fd(fd, 0) == EINVAL && hf3fs_reg_fd(0, 0) == EBADF);

  for (int i = 0; i < BLOCK * BLOCKS; i++) iov.base[i] = (uint8_t)(i * 31 + i / BLOCK);
  run(&writer, &iov, false, fd);
  memset(iov.base, 0, BLOCK * BLOCKS);
  run(&reader, &iov, true, kept);
  for (int i = 0; i < BLOCK * BLOCKS; i++) CHECK(iov.base[i] == (uint8_t)(i * 31 + i / BLOCK));
  uint8_t byte;
  CHECK(pread(fd, &byte, 1, 12345) == 1 && byte == iov.base[12345]);

  /* What is wrong is refused. */
  CHECK(hf3fs_prep_io(&reader, &iov, false, iov.base, fd, 0, BLOCK, NULL) == -EINVAL);
  CHECK(hf3fs_prep_io(&reader, &iov, true, iov.base + BLOCK * BLOCKS - 1, fd, 0, 2, NULL) == -EINVAL);
  CHECK(hf3fs_prep_io(&reader, &iov, true, iov.base, fd, 0, 0, NULL) == -EINVAL);
  struct hf3fs_cqe none;
  struct timespec past = {0, 0};
  CHECK(hf3fs_wait_for_ios(&reader, &none, 1, 1, &past) == 0);
  struct hf3fs_iov big;
  CHECK(hf3fs_iovcreate(&big, mount, (size_t)1 << 46, 0, -1) == -ENOMEM);
  CHECK(hf3fs_iovcreate(&big, "/proc", BLOCK, 0, -1) < 0);

  /* Another process finds the memory by its id. */
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    struct hf3fs_iov theirs;
    CHECK(hf3fs_iovopen(&theirs, (uint8_t *)iov.id, mount, iov.size, 0, -1) == 0);
    CHECK(memcmp(theirs.base, iov.base, iov.size) == 0);
    theirs.base[0] ^= 0xff;
    hf3fs_iovdestroy(&theirs);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(iov.base[0] == 0xff); /* it was 0 */

  char link[4096];
  snprintf(link, sizeof link, "%s.link", argv[1]);
  CHECK(hf3fs_hardlink(argv[1], link) == 0 && unlink(link) == 0);

  hf3fs_dereg_fd(fd);
  CHECK(hf3fs_prep_io(&writer, &iov, false, iov.base, fd, 0, BLOCK, NULL) == -EBADF);
  hf3fs_iordestroy(&reader);
  hf3fs_iordestroy(&writer);
  hf3fs_iovunlink(&iov);
  hf3fs_iovdestroy(&iov);
  close(fd);
  puts("ok");
  return 0;
}
