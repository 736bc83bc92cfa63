/* Makes opens fail or wait, in a process that preloads this library: those of paths that contain FAULT_UNDER, after
   FAULT_AFTER of them, FAULT_TIMES times (for ever without it), with the error FAULT_ERRNO, or FAULT_DELAY microseconds
   late; with FAULT_WHEN only while that file exists. With FAULT_WRITES, opens that write fail, and so do new
   directories, renames and deletions. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
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

static int fails(const char *path, int writes) {
  static atomic_long seen;
  const char *under = getenv("FAULT_UNDER"), *when = getenv("FAULT_WHEN");
  if (!under || !path || !strstr(path, under)) return 0;
  if (getenv("FAULT_WRITES") && !writes) return 0;
  if (when && access(when, F_OK)) return 0;
  long at = atomic_fetch_add(&seen, 1), after = number("FAULT_AFTER", 0), times = number("FAULT_TIMES", -1);
  usleep(number("FAULT_DELAY", 0));
  errno = number("FAULT_ERRNO", 0);
  return errno && at >= after && (times < 0 || at < after + times);
}

static const int WRITES = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND;

#define OPEN(name)                                                      \
  int name(const char *path, int flags, ...) {                          \
    va_list rest;                                                       \
    va_start(rest, flags);                                              \
    mode_t mode = va_arg(rest, mode_t);                                 \
    va_end(rest);                                                       \
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, #name);      \
    return fails(path, flags & WRITES) ? -1 : real(path, flags, mode);  \
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
    return fails(path, flags & WRITES) ? -1 : real(folder, path, flags, mode);  \
  }
OPENAT(openat)
OPENAT(openat64)

DIR *opendir(const char *path) {
  DIR *(*real)(const char *) = dlsym(RTLD_NEXT, "opendir");
  return fails(path, 0) ? NULL : real(path);
}

/* Of a relative path, the directory is not known: the run's own are absolute. */
#define CHANGE(name, path, parameters, arguments)      \
  int name parameters {                                \
    int (*real) parameters = dlsym(RTLD_NEXT, #name);  \
    return fails(path, 1) ? -1 : real arguments;       \
  }
CHANGE(mkdir, path, (const char *path, mode_t mode), (path, mode))
CHANGE(mkdirat, path, (int folder, const char *path, mode_t mode), (folder, path, mode))
CHANGE(rmdir, path, (const char *path), (path))
CHANGE(unlink, path, (const char *path), (path))
CHANGE(unlinkat, path, (int folder, const char *path, int flags), (folder, path, flags))
CHANGE(rename, to, (const char *from, const char *to), (from, to))
CHANGE(renameat, to, (int folder, const char *from, int other, const char *to), (folder, from, other, to))
