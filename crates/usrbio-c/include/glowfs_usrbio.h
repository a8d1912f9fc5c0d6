/* User-space I/O rings of a GlowFS mount, for C.
 *
 * Share a buffer with the mount daemon, register files, and hand in many reads or writes with one system call or none:
 *
 *     glowfs_connection *c = glowfs_connect("/mnt/glow");
 *     glowfs_buffer *b = glowfs_buffer_new(c, 1 << 20);
 *     glowfs_ring *r = glowfs_ring_new(c, GLOWFS_READ, 64, 0, 0, 0, 0);
 *     glowfs_file *f = glowfs_file_register(c, fd);
 *     glowfs_prepare(r, f, offset, b, 0, 4096, 7);
 *     glowfs_submit(r);
 *     glowfs_completion done;
 *     glowfs_wait(r, &done, 1, 1, -1);        // done.user == 7, done.result == 4096
 *
 * Functions that return a pointer return NULL and set errno; those that return int return a negated errno. Everything is taken back when it is
 * freed, and by the daemon when the process ends in whatever way. A ring is used by one thread at a time, but for glowfs_wait, which may
 * run beside. Free rings, files and buffers before their connection.
 *
 * A forked child has a ring of its parent's in name only: glowfs_prepare, glowfs_submit and glowfs_wait say -EINVAL. It makes a ring of its own, on the
 * connection of its parent or another one, and what it frees of its parent's stays the parent's. */
#ifndef GLOWFS_USRBIO_H
#define GLOWFS_USRBIO_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct glowfs_connection glowfs_connection;
typedef struct glowfs_buffer glowfs_buffer;
typedef struct glowfs_ring glowfs_ring;
typedef struct glowfs_file glowfs_file;

enum { GLOWFS_READ = 1, GLOWFS_WRITE = 2 };
enum { GLOWFS_ALLOW_READ_UNCOMMITTED = 1, GLOWFS_FORBID_READ_HOLES = 2 };

/* What became of an operation: its number, and bytes or a negated errno. */
typedef struct {
  uint64_t user;
  int64_t result;
} glowfs_completion;

/* The mount that a path is on. */
glowfs_connection *glowfs_connect(const char *path);
void glowfs_disconnect(glowfs_connection *);

/* Memory that is shared with the daemon, zeroed; whole pages exist from the beginning. */
glowfs_buffer *glowfs_buffer_new(glowfs_connection *, size_t bytes);
void *glowfs_buffer_base(glowfs_buffer *);
size_t glowfs_buffer_bytes(const glowfs_buffer *);
void glowfs_buffer_free(glowfs_buffer *);

/* A ring that reads or writes. Entries: a power of two. io_depth N > 0: exactly N at a time, fewer wait at most timeout_ms (0: for ever); 0: as soon as
 * possible; N < 0: at most -N at a time. Priority less than 0: before others of the same user. */
glowfs_ring *glowfs_ring_new(glowfs_connection *, int kind, uint32_t entries, int io_depth, int priority,
                             uint32_t timeout_ms, uint32_t flags);
void glowfs_ring_free(glowfs_ring *);

/* An open file, with the rights it is open with; it stays open until it is freed. */
glowfs_file *glowfs_file_register(glowfs_connection *, int fd);
void glowfs_file_free(glowfs_file *);

/* Prepares an operation; its index in the queue, -EAGAIN if the ring is full, -EINVAL for bytes outside the buffer
 * and for a ring of the process that this one was forked from. */
int glowfs_prepare(glowfs_ring *, glowfs_file *, uint64_t file_offset, glowfs_buffer *, size_t buffer_offset,
                   size_t bytes, uint64_t user);
/* Shows the daemon what was prepared. */
int glowfs_submit(glowfs_ring *);
/* Takes up to max completions; waits until there are at least min, at most timeout_ms (less than 0: for ever). How many there were. */
int glowfs_wait(glowfs_ring *, glowfs_completion *, int max, int min, int timeout_ms);

#ifdef __cplusplus
}
#endif
#endif
