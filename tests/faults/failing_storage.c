/* Makes opens fail or wait, in a process that preloads this library: those of paths that contain FAULT_UNDER, after
   FAULT_AFTER of them, with the error FAULT_ERRNO, or FAULT_DELAY microseconds late; with FAULT_WHEN only while that
   file exists. With FAULT_WRITES, opens that write fail, and so do new directories, renames and deletions. With
   FAULT_KILL, the process is killed there, after it has written what it was about to change to that file. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long number(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text ? atol(text) : otherwise;
}

static void end(const char *note, const char *call, const char *path) {
  FILE *file = fopen(note, "w");
  if (file) {
    fprintf(file, "%s %s\n", call, path);
    fclose(file);
  }
  kill(getpid(), SIGKILL);
  pause();
}

static int fails(const char *call, const char *path, int writes) {
  static atomic_long seen;
  const char *under = getenv("FAULT_UNDER"), *when = getenv("FAULT_WHEN"), *note = getenv("FAULT_KILL");
  if (!under || !path || !strstr(path, under)) return 0;
  if (getenv("FAULT_WRITES") && !writes) return 0;
  if (when && access(when, F_OK)) return 0;
  int is_due = atomic_fetch_add(&seen, 1) >= number("FAULT_AFTER", 0);
  usleep(number("FAULT_DELAY", 0));
  if (is_due && note) end(note, call, path);
  errno = number("FAULT_ERRNO", 0);
  return errno && is_due;
}

/* The path of a file in an open directory. */
static const char *whole(int folder, const char *path, char *room) {
  char link[64];
  if (!path || *path == '/' || folder == AT_FDCWD) return path;
  snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
  ssize_t length = readlink(link, room, PATH_MAX);
  if (length < 0) return path;
  snprintf(room + length, PATH_MAX, "/%s", path);
  return room;
}

/* Of two paths, the one that a fault is for. */
static const char *either(const char *from, const char *to) {
  const char *under = getenv("FAULT_UNDER");
  return under && to && strstr(to, under) ? to : from;
}

static const int WRITES = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND;

#define OPEN(name)                                                      \
  int name(const char *path, int flags, ...) {                          \
    va_list rest;                                                       \
    va_start(rest, flags);                                              \
    mode_t mode = va_arg(rest, mode_t);                                 \
    va_end(rest);                                                       \
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, #name);      \
    return fails(#name, path, flags & WRITES) ? -1 : real(path, flags, mode);  \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                            \
  int name(int folder, const char *path, int flags, ...) {                      \
    va_list rest;                                                               \
    va_start(rest, flags);                                                      \
    mode_t mode = va_arg(rest, mode_t);                                         \
    va_end(rest);                                                               \
    int (*real)(int, const char *, int, ...) = dlsym(RTLD_NEXT, #name);         \
    char room[PATH_MAX * 2];                                                    \
    if (fails(#name, whole(folder, path, room), flags & WRITES)) return -1;     \
    return real(folder, path, flags, mode);                                     \
  }
OPENAT(openat)
OPENAT(openat64)

DIR *opendir(const char *path) {
  DIR *(*real)(const char *) = dlsym(RTLD_NEXT, "opendir");
  return fails("opendir", path, 0) ? NULL : real(path);
}

#define CHANGE(name, path, parameters, arguments)                  \
  int name parameters {                                            \
    char room[PATH_MAX * 2], other_room[PATH_MAX * 2];             \
    (void)room, (void)other_room;                                  \
    int (*real) parameters = dlsym(RTLD_NEXT, #name);              \
    return fails(#name, path, 1) ? -1 : real arguments;            \
  }
#define IN(folder, path) whole(folder, path, room)
#define TO(folder, path) whole(folder, path, other_room)
CHANGE(mkdir, path, (const char *path, mode_t mode), (path, mode))
CHANGE(mkdirat, IN(folder, path), (int folder, const char *path, mode_t mode), (folder, path, mode))
CHANGE(rmdir, path, (const char *path), (path))
CHANGE(unlink, path, (const char *path), (path))
CHANGE(unlinkat, IN(folder, path), (int folder, const char *path, int flags), (folder, path, flags))
CHANGE(rename, either(from, to), (const char *from, const char *to), (from, to))
CHANGE(renameat, either(IN(folder, from), TO(other, to)), (int folder, const char *from, int other, const char *to),
       (folder, from, other, to))
