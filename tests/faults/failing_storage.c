/* Makes opens fail or wait, in a process that preloads this library: those of paths that contain FAULT_UNDER, after
   FAULT_AFTER of them, FAULT_TIMES times (for ever without it), with the error FAULT_ERRNO, or FAULT_DELAY microseconds
   late. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long number(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text ? atol(text) : otherwise;
}

static int fails(const char *path) {
  static atomic_long seen;
  const char *under = getenv("FAULT_UNDER");
  if (!under || !path || !strstr(path, under)) return 0;
  long at = atomic_fetch_add(&seen, 1), after = number("FAULT_AFTER", 0), times = number("FAULT_TIMES", -1);
  usleep(number("FAULT_DELAY", 0));
  errno = number("FAULT_ERRNO", 0);
  return errno && at >= after && (times < 0 || at < after + times);
}

#define OPEN(name)                                                   \
  int name(const char *path, int flags, ...) {                       \
    va_list rest;                                                    \
    va_start(rest, flags);                                           \
    mode_t mode = va_arg(rest, mode_t);                              \
    va_end(rest);                                                    \
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, #name);   \
    return fails(path) ? -1 : real(path, flags, mode);               \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                     \
  int name(int folder, const char *path, int flags, ...) {               \
    va_list rest;                                                        \
    va_start(rest, flags);                                               \
    mode_t mode = va_arg(rest, mode_t);                                  \
    va_end(rest);                                                        \
    int (*real)(int, const char *, int, ...) = dlsym(RTLD_NEXT, #name);  \
    return fails(path) ? -1 : real(folder, path, flags, mode);           \
  }
OPENAT(openat)
OPENAT(openat64)

DIR *opendir(const char *path) {
  DIR *(*real)(const char *) = dlsym(RTLD_NEXT, "opendir");
  return fails(path) ? NULL : real(path);
}
