/* Reads the first ten bytes of a file backwards, one operation a byte, in one batch.
 *
 *     cc -o rings rings.c -I... -L... -lglowfs_c && ./rings /mnt/glow/file */
#include <errno.h>
#include <fcntl.h>
#include <glowfs_usrbio.h>
#include <stdio.h>
#include <string.h>

enum { BYTES = 10 };

static int fail(const char *what, int error) {
  fprintf(stderr, "%s: %s\n", what, strerror(error));
  return 1;
}

int main(int argc, char **argv) {
  int fd = argc == 2 ? open(argv[1], O_RDONLY) : -1;
  if (fd < 0) return fail("open", errno);
  glowfs_connection *c = glowfs_connect(argv[1]);
  if (!c) return fail("glowfs_connect", errno);
  glowfs_buffer *b = glowfs_buffer_new(c, 4096);
  glowfs_ring *r = glowfs_ring_new(c, GLOWFS_READ, 16, 0, 0, 0, 0);
  glowfs_file *f = glowfs_file_register(c, fd);
  if (!b || !r || !f) return fail("glowfs", errno);

  for (int i = 0; i < BYTES; i++) {
    int index = glowfs_prepare(r, f, BYTES - 1 - i, b, i, 1, i);
    if (index < 0) return fail("glowfs_prepare", -index);
  }
  int error = glowfs_submit(r);
  if (error) return fail("glowfs_submit", -error);
  glowfs_completion done[BYTES];
  int n = glowfs_wait(r, done, BYTES, BYTES, 10000);
  if (n != BYTES) return fail("glowfs_wait", n < 0 ? -n : ETIMEDOUT);
  for (int i = 0; i < BYTES; i++)
    if (done[i].result != 1) return fail("a read", -(int)done[i].result);
  printf("%.*s\n", BYTES, (char *)glowfs_buffer_base(b));

  glowfs_file_free(f);
  glowfs_ring_free(r);
  glowfs_buffer_free(b);
  glowfs_disconnect(c);
  return 0;
}
