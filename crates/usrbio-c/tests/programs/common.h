/* What the test programs have in common: each is called with a path on a mount, and works with files whose names begin so. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <hf3fs_usrbio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
static const char *base_name;

/* The name of a file; good for three calls more. */
static inline const char *named(const char *suffix) {
  static char names[4][4096];
  static int next;
  char *name = names[next++ % 4];
  snprintf(name, sizeof names[0], "%s.%s", base_name, suffix);
  return name;
}

static inline int open_file(const char *suffix) {
  int fd = open(named(suffix), O_RDWR | O_CREAT | O_TRUNC, 0644);
  CHECK(fd >= 0);
  return fd;
}

static inline char first_byte(const char *suffix) {
  char byte;
  int fd = open(named(suffix), O_RDONLY);
  CHECK(fd >= 0 && pread(fd, &byte, 1, 0) == 1 && close(fd) == 0);
  return byte;
}

static inline void write_one(struct hf3fs_ior *ior, struct hf3fs_iov *iov, int fd, char byte) {
  struct hf3fs_cqe cqe;
  memset(iov->base, byte, BLOCK);
  CHECK(hf3fs_prep_io(ior, iov, false, iov->base, fd, 0, BLOCK, NULL) >= 0);
  CHECK(hf3fs_submit_ios(ior) == 0 && hf3fs_wait_for_ios(ior, &cqe, 1, 1, NULL) == 1);
  CHECK(cqe.result == BLOCK);
}

/* How many buffers are mapped here. */
static inline int mappings(void) {
  FILE *maps = fopen("/proc/self/maps", "r");
  CHECK(maps);
  char line[4096];
  int n = 0;
  while (fgets(line, sizeof line, maps)) n += strstr(line, "glowfs-buffer") != NULL;
  CHECK(fclose(maps) == 0);
  return n;
}

/* Finds the mount out; gives the file of the name "any". */
static inline int begin(const char *path, unsigned seconds) {
  alarm(seconds); /* A deadlock ends, too. */
  base_name = path;
  int fd = open_file("any");
  CHECK(hf3fs_extract_mount_point(mount, sizeof mount, named("any")) > 0);
  return fd;
}

/* A buffer of one block, and a ring that writes. */
static inline void make(struct hf3fs_iov *iov, struct hf3fs_ior *writer) {
  CHECK(hf3fs_iovcreate(iov, mount, BLOCK, 0, -1) == 0);
  CHECK(hf3fs_iorcreate(writer, mount, ENTRIES, false, 0, -1) == 0);
}

static inline int end(struct hf3fs_iov *iov, struct hf3fs_ior *writer) {
  hf3fs_iordestroy(writer);
  hf3fs_iovdestroy(iov);
  puts("ok");
  return 0;
}
