/* What programs for 3FS rely on without its header saying so. Exits with 0 if all is as it should be.
 *
 *     same /mnt/glow/file CASE */
#include "common.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static struct timespec in_seconds(int n) {
  struct timespec t;
  CHECK(clock_gettime(CLOCK_REALTIME, &t) == 0);
  t.tv_sec += n;
  return t;
}

static int prepare(struct hf3fs_ior *ior, struct hf3fs_iov *iov, int fd) {
  return hf3fs_prep_io(ior, iov, ior->for_read, iov->base, fd, 0, BLOCK, NULL);
}

/* The result of what comes next. */
static int64_t next_result(struct hf3fs_ior *ior) {
  struct hf3fs_cqe cqe;
  struct timespec soon = in_seconds(10);
  CHECK(hf3fs_wait_for_ios(ior, &cqe, 1, 1, &soon) == 1);
  return cqe.result;
}

static void *one_result(void *ior) {
  struct hf3fs_cqe cqe;
  CHECK(hf3fs_wait_for_ios(ior, &cqe, 1, 1, NULL) == 1 && cqe.result == BLOCK);
  return NULL;
}

/* In 3FS a submit is a hint: who waits gets what was prepared. */
static void unsubmitted(struct hf3fs_ior *writer, struct hf3fs_iov *iov, int fd) {
  CHECK(prepare(writer, iov, fd) >= 0);
  CHECK(next_result(writer) == BLOCK);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, one_result, writer) == 0);
  CHECK(usleep(50000) == 0);
  CHECK(prepare(writer, iov, fd) >= 0);
  CHECK(pthread_join(thread, NULL) == 0);
}

/* A ring has the entries that were asked for, and gives out the numbers below. */
static void entries(struct hf3fs_iov *iov, int fd) {
  struct hf3fs_ior ior;
  CHECK(hf3fs_iorcreate(&ior, mount, 5, false, 0, -1) == 0 && hf3fs_io_entries(&ior) == 5);
  bool seen[5] = {false};
  for (int i = 0; i < 5; i++) {
    int index = prepare(&ior, iov, fd);
    CHECK(index >= 0 && index < 5 && !seen[index]);
    seen[index] = true;
  }
  CHECK(prepare(&ior, iov, fd) == -EAGAIN);
  for (int i = 0; i < 5; i++) CHECK(next_result(&ior) == BLOCK);
  CHECK(prepare(&ior, iov, fd) >= 0 && next_result(&ior) == BLOCK);
  hf3fs_iordestroy(&ior);
  CHECK(hf3fs_iorcreate(&ior, mount, 0, false, 0, -1) == -EINVAL);
  CHECK(hf3fs_iorcreate3(&ior, mount, 4, false, 0, 0, -1, -1) == -EINVAL);
  CHECK(hf3fs_iorcreate(&ior, mount, 5, false, 6, -1) == -EINVAL); /* They never could be there. */
}

/* A file that is registered no more when its operations begin. */
static void deregistered(struct hf3fs_iov *iov, int fd) {
  struct hf3fs_ior pairs;
  CHECK(hf3fs_iorcreate(&pairs, mount, ENTRIES, false, 2, -1) == 0);
  int gone = open_file("gone");
  CHECK(hf3fs_reg_fd(gone, 0) <= 0);
  memset(iov->base, 'g', BLOCK);
  CHECK(prepare(&pairs, iov, gone) >= 0 && hf3fs_submit_ios(&pairs) == 0);
  hf3fs_dereg_fd(gone);
  CHECK(close(gone) == 0 && prepare(&pairs, iov, gone) == -EBADF);
  CHECK(prepare(&pairs, iov, fd) >= 0 && hf3fs_submit_ios(&pairs) == 0);
  CHECK(next_result(&pairs) == BLOCK && next_result(&pairs) == BLOCK);
  hf3fs_iordestroy(&pairs);
  char byte;
  gone = open(named("gone"), O_RDONLY);
  CHECK(gone >= 0 && pread(gone, &byte, 1, BLOCK - 1) == 1 && byte == 'g' && close(gone) == 0);
}

/* A wrapped iov is a view of what another one holds; it is never destroyed, and if it is, nothing happens. */
static void wrapped(struct hf3fs_ior *writer, int fd) {
  int before = mappings();
  struct hf3fs_iov owner, view, last;
  CHECK(hf3fs_iovcreate(&owner, mount, 2 * BLOCK, 0, -1) == 0);
  CHECK(hf3fs_iovwrap(&view, owner.base, (uint8_t *)owner.id, mount, 2 * BLOCK, 0, -1) == 0);
  CHECK(hf3fs_iovwrap(&last, owner.base, (uint8_t *)owner.id, mount, BLOCK, 0, -1) == 0);
  CHECK(view.iovh == NULL && last.iovh == NULL && mappings() == before + 1);
  hf3fs_iovdestroy(&last);
  CHECK(prepare(writer, &last, fd) >= 0 && next_result(writer) == BLOCK);
  CHECK(prepare(writer, &view, fd) >= 0 && next_result(writer) == BLOCK);
  CHECK(prepare(writer, &owner, fd) >= 0 && next_result(writer) == BLOCK);
  hf3fs_iovdestroy(&owner);
  CHECK(mappings() == before); /* Nothing of it is left, though the views were not destroyed. */
  CHECK(prepare(writer, &view, fd) == -EINVAL);
  hf3fs_iovdestroy(&view);
}

/* Who makes memory, closes a file or asks the daemon waits alone: the library's calls come here first. */
static _Thread_local bool slow;
static atomic_int waiting, released;

static void stand_still(void) {
  if (!slow) return;
  atomic_fetch_add(&waiting, 1);
  while (!atomic_load(&released)) usleep(1000);
}
int open64(const char *path, int flags, ...) {
  if (!strcmp(path, "/proc/meminfo")) stand_still();
  va_list rest;
  va_start(rest, flags);
  mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
int ioctl(int fd, unsigned long request, ...) {
  va_list rest;
  va_start(rest, request);
  void *record = va_arg(rest, void *);
  va_end(rest);
  stand_still();
  return syscall(SYS_ioctl, fd, request, record);
}
int close(int fd) {
  stand_still();
  return syscall(SYS_close, fd);
}

enum { CREATE, DESTROY, RING, DEREGISTER, WAYS };
static struct hf3fs_iov slow_iov;
static int slow_fd;

static void *slow_one(void *way) {
  struct hf3fs_ior ior;
  slow = true;
  switch ((int)(size_t)way) {
    case CREATE: CHECK(hf3fs_iovcreate(&slow_iov, mount, BLOCK, 0, -1) == 0); break;
    case DESTROY: hf3fs_iovdestroy(&slow_iov); break;
    case RING: CHECK(hf3fs_iorcreate(&ior, mount, ENTRIES, true, 0, -1) == 0); break;
    default: hf3fs_dereg_fd(slow_fd);
  }
  slow = false;
  return NULL;
}

static void locks(struct hf3fs_ior *writer, struct hf3fs_iov *iov, int fd) {
  slow_fd = open_file("slow");
  CHECK(hf3fs_reg_fd(slow_fd, 0) <= 0);
  for (int way = CREATE; way < WAYS; way++) {
    pthread_t thread;
    atomic_store(&waiting, 0);
    atomic_store(&released, 0);
    CHECK(pthread_create(&thread, NULL, slow_one, (void *)(size_t)way) == 0);
    while (!atomic_load(&waiting)) usleep(1000);
    CHECK(prepare(writer, iov, fd) >= 0 && next_result(writer) == BLOCK);
    int other = open_file("other");
    CHECK(hf3fs_reg_fd(other, 0) <= 0);
    hf3fs_dereg_fd(other);
    CHECK(close(other) == 0);
    atomic_store(&released, 1);
    CHECK(pthread_join(thread, NULL) == 0);
  }
}

static void arguments(int fd) {
  const char *here = named("any"), *there = named("link");
  CHECK(hf3fs_hardlink(named("nothing"), there) == ENOENT);
  CHECK(hf3fs_hardlink(here, "/nothing/here") == ENOENT);
  CHECK(hf3fs_hardlink("/proc/self/maps", there) == ENOTTY); /* of another file system */
  CHECK(hf3fs_hardlink(mount, there) == EISDIR);
  CHECK(hf3fs_hardlink(here, here) == EEXIST);
  CHECK(hf3fs_hardlink(here, there) == 0 && unlink(there) == 0);

  const size_t start[] = {0, 2 * BLOCK}, end[] = {BLOCK, BLOCK};
  FILE *elsewhere = tmpfile();
  CHECK(elsewhere && fwrite(mount, 1, sizeof mount, elsewhere) == sizeof mount && fflush(elsewhere) == 0);
  CHECK(hf3fs_punchhole(fileno(elsewhere), 1, start, end, 0) == ENOTTY);
  char byte = 0;
  CHECK(pread(fileno(elsewhere), &byte, 1, 0) == 1 && byte == mount[0] && fclose(elsewhere) == 0);
  CHECK(hf3fs_punchhole(-1, 1, start, end, 0) == EBADF && hf3fs_punchhole(1000, 1, start, end, 0) == EBADF);
  CHECK(hf3fs_punchhole(fd, 0, NULL, NULL, 0) == 0 && hf3fs_punchhole(fd, -1, start, end, 0) == 0);
  char bytes[3 * BLOCK];
  memset(bytes, 'x', sizeof bytes);
  CHECK(pwrite(fd, bytes, sizeof bytes, 0) == sizeof bytes);
  CHECK(hf3fs_punchhole(fd, 2, start, end, 0) == 0); /* the second one ends before it begins */
  CHECK(pread(fd, bytes, sizeof bytes, 0) == sizeof bytes);
  CHECK(bytes[0] == 0 && bytes[BLOCK - 1] == 0 && bytes[BLOCK] == 'x' && bytes[3 * BLOCK - 1] == 'x');

  struct hf3fs_iov iov;
  uint8_t id[16] = {1};
  CHECK(hf3fs_iovcreate_device(&iov, mount, BLOCK, 0, 0) == -ENOTSUP);
  CHECK(hf3fs_iovopen_device(&iov, id, mount, BLOCK, 0, 0) == -ENOTSUP);
  CHECK(hf3fs_iovwrap_device(&iov, bytes, id, mount, BLOCK, 0, 0) == -ENOTSUP);
}

/* Who may only pass through the root of the mount is told of it all the same. */
static void mount_point(void) {
  char dir[4096], file[4200], found[256];
  snprintf(dir, sizeof dir, "%s/open", mount);
  snprintf(file, sizeof file, "%s/f", dir);
  CHECK(mkdir(dir, 0755) == 0 && close(open(file, O_CREAT | O_RDWR, 0644)) == 0 && chmod(mount, 0711) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK(setgid(65534) == 0 && setuid(65534) == 0 && open(mount, O_RDONLY) < 0);
    CHECK(hf3fs_extract_mount_point(found, sizeof found, file) == (int)strlen(mount) + 1);
    CHECK(strcmp(found, mount) == 0);
    CHECK(hf3fs_extract_mount_point(found, sizeof found, "/proc/self/maps") == -1);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0 && chmod(mount, 0755) == 0);
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  int fd = begin(argv[1], 30);
  CHECK(hf3fs_reg_fd(fd, 0) <= 0);
  struct hf3fs_iov iov;
  struct hf3fs_ior writer;
  make(&iov, &writer);
  const char *which = argv[2];
  if (!strcmp(which, "unsubmitted")) unsubmitted(&writer, &iov, fd);
  else if (!strcmp(which, "entries")) entries(&iov, fd);
  else if (!strcmp(which, "deregistered")) deregistered(&iov, fd);
  else if (!strcmp(which, "wrapped")) wrapped(&writer, fd);
  else if (!strcmp(which, "locks")) locks(&writer, &iov, fd);
  else if (!strcmp(which, "arguments")) arguments(fd);
  else if (!strcmp(which, "mount_point")) mount_point();
  else CHECK(!"a case");
  return end(&iov, &writer);
}
