/* A forked child has its parent's rings in name only, also by our own names, where connection, file and buffer are those of the parent. Exits with 0 if all is
 * as it should be.
 *
 *     forked_own /mnt/glow/file */
#include "common.h"
#include <glowfs_usrbio.h>
#include <sys/wait.h>

static void write_byte(glowfs_ring *ring, glowfs_file *file, glowfs_buffer *buffer, char byte) {
  glowfs_completion done;
  *(char *)glowfs_buffer_base(buffer) = byte;
  CHECK(glowfs_prepare(ring, file, 0, buffer, 0, 1, byte) >= 0 && glowfs_submit(ring) == 0);
  CHECK(glowfs_wait(ring, &done, 1, 1, 10000) == 1 && done.user == (uint64_t)byte && done.result == 1);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  alarm(50);
  base_name = argv[1];
  int fd = open_file("any"), status;
  glowfs_connection *c = glowfs_connect(named("any"));
  glowfs_buffer *buffer = glowfs_buffer_new(c, BLOCK);
  glowfs_ring *ring = glowfs_ring_new(c, GLOWFS_WRITE, ENTRIES, 0, 0, 0, 0);
  glowfs_file *file = glowfs_file_register(c, fd);
  CHECK(c && buffer && ring && file);
  write_byte(ring, file, buffer, 'a');
  *(char *)glowfs_buffer_base(buffer) = 'b';
  CHECK(glowfs_prepare(ring, file, 0, buffer, 0, 1, 'b') >= 0); /* not submitted when it forks */
  pid_t forked = fork();
  CHECK(forked >= 0);
  if (forked == 0) {
    glowfs_completion done;
    CHECK(glowfs_prepare(ring, file, 0, buffer, 0, 1, 'x') == -EINVAL);
    CHECK(glowfs_submit(ring) == -EINVAL && glowfs_wait(ring, &done, 1, 0, 0) == -EINVAL);
    glowfs_ring *own = glowfs_ring_new(c, GLOWFS_WRITE, ENTRIES, 0, 0, 0, 0);
    CHECK(own);
    write_byte(own, file, buffer, 'c');
    glowfs_ring_free(own);
    glowfs_ring_free(ring);
    glowfs_file_free(file);
    glowfs_buffer_free(buffer);
    glowfs_disconnect(c);
    exit(0);
  }
  CHECK(waitpid(forked, &status, 0) == forked && status == 0 && first_byte("any") == 'c');
  glowfs_completion done;
  *(char *)glowfs_buffer_base(buffer) = 'b';
  CHECK(glowfs_submit(ring) == 0 && glowfs_wait(ring, &done, 1, 1, 10000) == 1);
  CHECK(done.user == 'b' && done.result == 1 && first_byte("any") == 'b');
  write_byte(ring, file, buffer, 'd');
  CHECK(first_byte("any") == 'd');
  puts("ok");
  return 0;
}
