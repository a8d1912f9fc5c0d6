/* The names and meanings of 3FS's user-space I/O rings, served by a GlowFS mount.
 *
 * A program that was written for 3FS is compiled with this header, unmodified, and linked with -lhf3fs_api_shared (a link to
 * libglowfs_c.so that scripts/install-c makes). What differs from 3FS is said at each function. Memory is shared by passing descriptors to
 * the mount daemon: nothing appears in /dev/shm. */
#ifndef HF3FS_USRBIO_H
#define HF3FS_USRBIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HF3FS_SUPER_MAGIC 0x8f3f5fff

typedef void *hf3fs_iov_handle;
typedef void *hf3fs_ior_handle;

/* A buffer that the program and the mount daemon share. */
struct hf3fs_iov {
  uint8_t *base;
  hf3fs_iov_handle iovh;
  char id[16];
  char mount_point[256];
  size_t size;
  size_t block_size; /* kept, without a meaning here */
  int numa;          /* kept, without a meaning here */
};

/* A ring. */
struct hf3fs_ior {
  struct hf3fs_iov iov;
  hf3fs_ior_handle iorh;
  char mount_point[256];
  bool for_read;
  int io_depth; /* N > 0: exactly N at a time; 0: as soon as possible; N < 0: at most -N in work at a time */
  int priority; /* less than 0: before others of the same user; more than 0: after them */
  int timeout;  /* with a positive io_depth: how long fewer than N wait for more, in ms; 0: for ever */
  uint64_t flags;
};

/* What became of an operation: bytes, or a negated errno. */
struct hf3fs_cqe {
  int32_t index;
  int32_t reserved;
  int64_t result;
  const void *userdata;
};

/* Whether the descriptor is of a GlowFS mount. */
bool hf3fs_is_hf3fs(int fd);

/* The mount point that a path is on. Returns its length with the ending NUL, or -1 if the path is not on such a mount; it was written only if
 * that is at most size. */
int hf3fs_extract_mount_point(char *hf3fs_mount_point, int size, const char *path);

/* Buffers: 0, or a negated errno (-ENOMEM: the machine has not that much; never a SIGBUS later). iovopen finds the memory of another process by its id
 * (the caller must have the right to look into that process); iovwrap uses memory that such an iov has mapped already, of this process or of another one, and holds
 * nothing: it serves as long as that iov is there (-ENOENT: nobody has the id. What it was found for in another process is kept until as many were destroyed as
 * were wrapped). iovunlink takes the id away, so that nobody finds it any more. Each iov that was created or opened is destroyed by itself; the others of its
 * id go on. */
int hf3fs_iovcreate(struct hf3fs_iov *iov, const char *hf3fs_mount_point, size_t size, size_t block_size, int numa);
int hf3fs_iovopen(struct hf3fs_iov *iov, const uint8_t id[16], const char *hf3fs_mount_point, size_t size,
                  size_t block_size, int numa);
void hf3fs_iovunlink(struct hf3fs_iov *iov);
void hf3fs_iovdestroy(struct hf3fs_iov *iov);
int hf3fs_iovwrap(struct hf3fs_iov *iov, void *base, const uint8_t id[16], const char *hf3fs_mount_point, size_t size,
                  size_t block_size, int numa);

/* Memory of accelerators: not here; -ENOTSUP. */
int hf3fs_iovcreate_device(struct hf3fs_iov *iov, const char *hf3fs_mount_point, size_t size, size_t block_size,
                           int device_id);
int hf3fs_iovopen_device(struct hf3fs_iov *iov, const uint8_t id[16], const char *hf3fs_mount_point, size_t size,
                         size_t block_size, int device_id);
int hf3fs_iovwrap_device(struct hf3fs_iov *iov, void *device_ptr, const uint8_t id[16], const char *hf3fs_mount_point,
                         size_t size, size_t block_size, int device_id);

/* The memory that a ring of so many entries takes, in bytes; 0 if there can be none. */
size_t hf3fs_ior_size(int entries);

/* Rings: 0, or a negated errno: -EINVAL more than 65,536 entries, or an io_depth that is more than the entries. */
int hf3fs_iorcreate(struct hf3fs_ior *ior, const char *hf3fs_mount_point, int entries, bool for_read, int io_depth,
                    int numa);
int hf3fs_iorcreate2(struct hf3fs_ior *ior, const char *hf3fs_mount_point, int entries, bool for_read, int io_depth,
                     int priority, int numa);
int hf3fs_iorcreate3(struct hf3fs_ior *ior, const char *hf3fs_mount_point, int entries, bool for_read, int io_depth,
                     int priority, int timeout, int numa);
#define HF3FS_IOR_ALLOW_READ_UNCOMMITTED 1 /* accepted; only committed data is returned */
#define HF3FS_IOR_FORBID_READ_HOLES 2      /* a read ends before a hole; with data behind it, or nothing before it: -ENODATA */
int hf3fs_iorcreate4(struct hf3fs_ior *ior, const char *hf3fs_mount_point, int entries, bool for_read, int io_depth,
                     int timeout, int numa, uint64_t flags);
void hf3fs_iordestroy(struct hf3fs_ior *ior);

/* Registers a descriptor for prep_io. At most 0: a number that can be given to prep_io in its place; otherwise an errno: EBADF not of a GlowFS
 * mount, EINVAL registered already. The file stays open until dereg_fd, whatever becomes of the descriptor, and
 * until the results of the operations are taken that were prepared before. */
int hf3fs_reg_fd(int fd, uint64_t flags);
void hf3fs_dereg_fd(int fd);

/* How many operations a ring takes at a time. */
int hf3fs_io_entries(const struct hf3fs_ior *ior);

/* Prepares an operation of len bytes between ptr (inside the iov) and the file at off. Its index in the queue, or -EINVAL, -EBADF (not
 * registered), -EACCES (not open for that), -EAGAIN (the ring is full). One thread prepares at a time. */
int hf3fs_prep_io(const struct hf3fs_ior *ior, const struct hf3fs_iov *iov, bool read, void *ptr, int fd, size_t off,
                  uint64_t len, const void *userdata);
/* Shows the daemon what was prepared (wait_for_ios does, too). 0, or a negated errno. */
int hf3fs_submit_ios(const struct hf3fs_ior *ior);
/* Takes up to cqec results; waits until there are min_results of them or it is abs_timeout (CLOCK_REALTIME; NULL: never). How many, or a
 * negated errno (-ENOTCONN: the mount is gone). */
int hf3fs_wait_for_ios(const struct hf3fs_ior *ior, struct hf3fs_cqe *cqes, int cqec, int min_results,
                       const struct timespec *abs_timeout);

/* A hard link to a file that may be read; 0 or an errno: ENOTTY it is not of a GlowFS mount, EISDIR a directory. */
int hf3fs_hardlink(const char *target, const char *link_name);
/* Makes holes of [start, end) each, anywhere (in 3FS they begin and end with chunks); 0 or an errno: ENOTTY the file is not of a GlowFS mount, EBADF not
 * open for writing. One that ends before it begins is none. */
int hf3fs_punchhole(int fd, int n, const size_t *start, const size_t *end, size_t flags);

enum hf3fs_mem_type { HF3FS_MEM_HOST = 0, HF3FS_MEM_DEVICE = 1, HF3FS_MEM_MANAGED = 2 };
bool hf3fs_gdr_available(void);                                    /* false */
int hf3fs_gdr_device_count(void);                                  /* 0 */
enum hf3fs_mem_type hf3fs_iov_mem_type(const struct hf3fs_iov *iov); /* HF3FS_MEM_HOST */
int hf3fs_iov_device_id(const struct hf3fs_iov *iov);              /* -1 */
int hf3fs_iovsync(const struct hf3fs_iov *iov, int direction);     /* 0: nothing to do for memory of the host */

#ifdef __cplusplus
}
#endif
#endif
