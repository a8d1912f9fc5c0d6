/* A fio engine on user-space I/O rings, with the options of 3FS's: mountpoint, ior_depth, ior_timeout. scripts/fio-engine builds it.
 *
 *     fio --ioengine=external:/.../hf3fs_usrbio.so --mountpoint=/mnt/glow --directory=/mnt/glow --rw=randread --bs=4k --iodepth=64 ...
 *
 * Each job has one buffer and two rings, one that reads and one that writes. It must never give fio a result twice, and never end while an operation can
 * still write into the job's buffer. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fio.h"
#include "optgroup.h"

#include "hf3fs_usrbio.h"

struct ring_options {
  void *pad; /* fio takes no option at offset 0 */
  char *mountpoint;
  int ior_depth;
  int ior_timeout;
};

static struct fio_option options[] = {
    {
        .name = "mountpoint",
        .lname = "mount point",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct ring_options, mountpoint),
        .help = "Where the file system is mounted (default: where the job's files are)",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "ior_depth",
        .lname = "operations that a ring carries out at a time",
        .type = FIO_OPT_INT,
        .off1 = offsetof(struct ring_options, ior_depth),
        .help = "N > 0: exactly N, at most iodepth; 0: as soon as possible; N < 0: at most -N",
        .def = "0",
        .minval = -65536,
        .maxval = 65536,
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "ior_timeout",
        .lname = "how long fewer than ior_depth operations wait for more",
        .type = FIO_OPT_INT,
        .off1 = offsetof(struct ring_options, ior_timeout),
        .help = "In milliseconds; 0: for ever, also the last ones of a job, so their number must be a multiple of ior_depth",
        .def = "1",
        .minval = 0,
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {.name = NULL},
};

enum { READER, WRITER, RINGS };

struct job {
  char mountpoint[256];
  struct hf3fs_iov iov;
  struct hf3fs_ior rings[RINGS];
  unsigned int busy[RINGS]; /* prepared and not reaped */
  struct hf3fs_cqe *cqes;
  struct io_u **done;
};

static void report(struct thread_data *td, int error, const char *what) { td_verror(td, error < 0 ? -error : error, what); }

/* The mount point: as told, or where the job's files are. */
static int find_mountpoint(struct thread_data *td, struct job *job) {
  struct ring_options *o = td->eo;
  const char *hints[] = {o->mountpoint, td->o.directory, td->files_index ? td->files[0]->file_name : NULL, "."};
  for (size_t i = 0; i < sizeof hints / sizeof *hints; i++) {
    char path[4096];
    if (!hints[i] || strlen(hints[i]) >= sizeof path) continue;
    strcpy(path, hints[i]);
    /* The file may not be there yet: its directory is. */
    for (;;) {
      int n = hf3fs_extract_mount_point(job->mountpoint, sizeof job->mountpoint, path);
      if (n > 0 && n <= (int)sizeof job->mountpoint) return 0;
      char *slash = strrchr(path, '/');
      if (!slash || slash == path) break;
      *slash = 0;
    }
    if (i == 0) break; /* told, and wrong */
  }
  log_err("hf3fs_usrbio: no GlowFS mount; name it with mountpoint=\n");
  return EINVAL;
}

static int job_init(struct thread_data *td) {
  struct ring_options *o = td->eo;
  struct job *job = calloc(1, sizeof *job);
  unsigned int depth = td->o.iodepth;
  if (!job) return 1;
  td->io_ops_data = job;
  job->cqes = calloc(depth, sizeof *job->cqes);
  job->done = calloc(depth, sizeof *job->done);
  if (!job->cqes || !job->done) {
    report(td, ENOMEM, "hf3fs_usrbio");
    return 1;
  }
  int error = find_mountpoint(td, job);
  int at_a_time = o->ior_depth > (int)depth ? (int)depth : o->ior_depth;
  for (int i = 0; !error && i < RINGS; i++) {
    if (i == READER ? !td_read(td) && !td->o.verify : !td_write(td)) continue;
    error = hf3fs_iorcreate3(&job->rings[i], job->mountpoint, depth, i == READER, at_a_time, 0, o->ior_timeout, -1);
  }
  if (error) report(td, error, "hf3fs_iorcreate3");
  return error != 0;
}

static void job_cleanup(struct thread_data *td) {
  struct job *job = td->io_ops_data;
  if (!job) return;
  for (int i = 0; i < RINGS; i++) hf3fs_iordestroy(&job->rings[i]);
  free(job->cqes);
  free(job->done);
  free(job);
  td->io_ops_data = NULL;
}

static int job_memory(struct thread_data *td, size_t bytes) {
  struct job *job = td->io_ops_data;
  int error = hf3fs_iovcreate(&job->iov, job->mountpoint, bytes, 0, -1);
  if (error) {
    report(td, error, "hf3fs_iovcreate");
    return 1;
  }
  td->orig_buffer = (char *)job->iov.base;
  return 0;
}

static void job_memory_free(struct thread_data *td) {
  struct job *job = td->io_ops_data;
  if (job) hf3fs_iovdestroy(&job->iov);
  td->orig_buffer = NULL;
}

static int job_open(struct thread_data *td, struct fio_file *f) {
  int error = generic_open_file(td, f);
  if (error) return error;
  error = hf3fs_reg_fd(f->fd, 0);
  if (error > 0) {
    report(td, error, "hf3fs_reg_fd");
    return generic_close_file(td, f) ? 1 : error;
  }
  return 0;
}

static int job_close(struct thread_data *td, struct fio_file *f) {
  hf3fs_dereg_fd(f->fd);
  return generic_close_file(td, f);
}

static enum fio_q_status job_queue(struct thread_data *td, struct io_u *io_u) {
  struct job *job = td->io_ops_data;
  fio_ro_check(td, io_u);
  if (io_u->ddir != DDIR_READ && io_u->ddir != DDIR_WRITE) {
    if (job->busy[WRITER]) return FIO_Q_BUSY; /* what was written before comes first */
    if (io_u->ddir == DDIR_TRIM)
      do_io_u_trim(td, io_u);
    else
      do_io_u_sync(td, io_u);
    return FIO_Q_COMPLETED;
  }
  int which = io_u->ddir == DDIR_READ ? READER : WRITER;
  int index = hf3fs_prep_io(&job->rings[which], &job->iov, which == READER, io_u->xfer_buf, io_u->file->fd,
                            io_u->offset, io_u->xfer_buflen, io_u);
  if (index == -EAGAIN) return FIO_Q_BUSY;
  if (index < 0) {
    io_u->error = -index;
    return FIO_Q_COMPLETED;
  }
  job->busy[which]++;
  return FIO_Q_QUEUED;
}

static int job_commit(struct thread_data *td) {
  struct job *job = td->io_ops_data;
  for (int i = 0; i < RINGS; i++) {
    if (!job->busy[i]) continue;
    int error = hf3fs_submit_ios(&job->rings[i]);
    if (error) return error;
  }
  io_u_mark_submit(td, job->busy[READER] + job->busy[WRITER]);
  return 0;
}

/* Takes results of one ring behind the `n` that are there, at most up to `max`; waits for `min` of them until `until`. */
static int reap(struct job *job, int which, int n, int max, int min, const struct timespec *until) {
  int got = hf3fs_wait_for_ios(&job->rings[which], job->cqes, max - n, min, until);
  for (int i = 0; i < got; i++) {
    struct io_u *io_u = (struct io_u *)job->cqes[i].userdata;
    int64_t result = job->cqes[i].result;
    if (result < 0)
      io_u->error = -result;
    else
      io_u->resid = io_u->xfer_buflen - result;
    job->done[n + i] = io_u;
  }
  if (got > 0) job->busy[which] -= got;
  return got;
}

static struct timespec in_future(long nanoseconds) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  t.tv_nsec += nanoseconds;
  t.tv_sec += t.tv_nsec / 1000000000;
  t.tv_nsec %= 1000000000;
  return t;
}

static int job_getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *t) {
  struct job *job = td->io_ops_data;
  const struct timespec past = {0, 0};
  struct timespec end = {0, 0};
  int n = 0;
  if (t) {
    end = in_future(t->tv_nsec % 1000000000);
    end.tv_sec += t->tv_sec;
  }
  for (;;) {
    for (int i = 0; i < RINGS && n < (int)max; i++) {
      if (!job->busy[i]) continue;
      int got = reap(job, i, n, max, 0, &past);
      if (got < 0) return got;
      n += got;
    }
    if (n >= (int)min) return n;
    /* One ring alone is waited for as long as it takes; of two, now one and now the other. */
    bool both = job->busy[READER] && job->busy[WRITER];
    int which = job->busy[READER] ? READER : WRITER;
    if (!job->busy[which]) return n;
    struct timespec soon = in_future(200000);
    int want = both ? 1 : (int)min - n;
    int got = reap(job, which, n, max, want, both ? &soon : t ? &end : NULL);
    if (got < 0) return got;
    n += got;
    if (t && !both && got < want) return n;
  }
}

static struct io_u *job_event(struct thread_data *td, int event) {
  struct job *job = td->io_ops_data;
  return job->done[event];
}

struct ioengine_ops ioengine = {
    .name = "hf3fs_usrbio",
    .version = FIO_IOOPS_VERSION,
    .flags = FIO_NODISKUTIL,
    .init = job_init,
    .cleanup = job_cleanup,
    .iomem_alloc = job_memory,
    .iomem_free = job_memory_free,
    .open_file = job_open,
    .close_file = job_close,
    .get_file_size = generic_get_file_size,
    .queue = job_queue,
    .commit = job_commit,
    .getevents = job_getevents,
    .event = job_event,
    .options = options,
    .option_struct_size = sizeof(struct ring_options),
};
