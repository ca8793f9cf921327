/* Observes divvy's file system calls in tests, by LD_PRELOAD.
 *
 * It intercepts every call that changes a file or a directory below DIVVY_POWER_ROOT:
 * - with DIVVY_POWER_TRACE=FILE, it appends each successful call to FILE, in order. trace.rs reads this file.
 * - with DIVVY_POWER_FAULTS=FILE, it makes the calls fail that FILE currently names. failing.rs writes this file.
 *
 * Calls are recorded under one lock, which is held while the call runs, so that the order in the trace is the order in
 * which the kernel executed them. A sync is recorded twice, when it begins and when it has ended, and runs without the lock.
 * fopen, aio, io_uring and mmap with MAP_SHARED are not recorded: the first three are unused, and the last one aborts.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum operation {
    OPEN = 1, CLOSE, WRITE, TRUNCATE, ALLOCATE, LINK, RENAME, UNLINK, MKDIR, RMDIR, SYNC_BEGIN, SYNC_END
};

/* The bits of faults.calls, also defined in failing.rs. */
enum call {
    F_OPEN = 1 << 0, F_WRITE = 1 << 1, F_PWRITE = 1 << 2, F_FSYNC = 1 << 3, F_FDATASYNC = 1 << 4,
    F_FTRUNCATE = 1 << 5, F_FALLOCATE = 1 << 6, F_RENAME = 1 << 7, F_LINK = 1 << 8, F_UNLINK = 1 << 9,
    F_MKDIR = 1 << 10,
    /* The first half of a write is written before the rest fails. */
    F_HALVES = 1 << 31
};

struct faults {
    volatile uint32_t error;
    volatile uint32_t calls;
    volatile uint32_t failed;
};

struct header {
    uint32_t operation;
    int32_t fd;
    /* The flags of OPEN, or the mode of ALLOCATE. */
    uint32_t flags;
    uint32_t path_length, second_path_length, data_length;
    uint64_t offset, length;

};

#define MAX_FDS 65536
static char *names[MAX_FDS];
static char root[PATH_MAX];
static size_t root_length;
static int trace = -1;
static struct faults *faults;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int halved;

#define REAL(name) ({ static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); real; })

static void fail(const char *what) {
    fprintf(stderr, "interpose.c: %s\n", what);
    abort();
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("DIVVY_POWER_ROOT");
    if (!path || !realpath(path, root)) return;
    root_length = strlen(root);
    if ((path = getenv("DIVVY_POWER_TRACE"))) {
        trace = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (trace < 0) fail("cannot open the trace");
    }
    if ((path = getenv("DIVVY_POWER_FAULTS"))) {
        int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
        faults = (void *)syscall(SYS_mmap, NULL, sizeof *faults, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (fd < 0 || faults == MAP_FAILED) fail("cannot open the faults");
        syscall(SYS_close, fd);
    }
}

/* Returns the path below the root, or NULL. */
static const char *below(const char *path) {
    if (!root_length || strncmp(path, root, root_length) || (path[root_length] && path[root_length] != '/')) return NULL;
    return path;
}

static const char *resolve(int directory, const char *path, char *out) {
    if (path[0] == '/') return below(path);
    if (directory == AT_FDCWD) {
        if (!getcwd(out, PATH_MAX)) return NULL;
    } else if (directory >= 0 && directory < MAX_FDS && names[directory]) {
        snprintf(out, PATH_MAX, "%s", names[directory]);
    } else {
        return NULL;
    }
    size_t length = strlen(out);
    snprintf(out + length, PATH_MAX - length, "/%s", path);
    return below(out);
}

static const char *name_of(int fd) { return fd >= 0 && fd < MAX_FDS ? names[fd] : NULL; }

static int fails(uint32_t call) {
    if (!faults || !faults->error || !(faults->calls & call)) return 0;
    __sync_fetch_and_add(&faults->failed, 1);
    errno = faults->error;
    return 1;
}

static void record(enum operation operation, int fd, uint32_t flags, uint64_t offset, uint64_t length, const char *path,
                   const char *second, const void *data) {
    if (trace < 0) return;
    int before = errno;
    uint64_t bytes = data ? length : 0;
    struct header header = { operation, fd, flags, path ? strlen(path) : 0, second ? strlen(second) : 0, bytes, offset, length };
    struct iovec parts[] = {
        { &header, sizeof header }, { (void *)path, header.path_length },
        { (void *)second, header.second_path_length }, { (void *)data, bytes },
    };
    ssize_t whole = sizeof header + header.path_length + header.second_path_length + bytes;
    if (syscall(SYS_writev, trace, parts, 4) != whole) fail("cannot write the trace");
    errno = before;
}

static int opened(int fd, const char *path, int flags) {
    if (fd < 0 || !path) return fd;
    if (fd >= MAX_FDS) fail("too many files are open");
    free(names[fd]);
    names[fd] = strdup(path);
    record(OPEN, fd, flags, 0, 0, path, NULL, NULL);
    return fd;
}

static int open_at(int directory, const char *path, int flags, mode_t mode) {
    char whole[PATH_MAX];
    const char *name = resolve(directory, path, whole);
    if (!name) return syscall(SYS_openat, directory, path, flags, mode);
    if ((flags & (O_CREAT | O_TRUNC)) && fails(F_OPEN)) return -1;
    pthread_mutex_lock(&lock);
    int fd = opened(syscall(SYS_openat, directory, path, flags, mode), name, flags);
    pthread_mutex_unlock(&lock);
    return fd;
}

#define MODE(last) ({ mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list list; va_start(list, last); mode = va_arg(list, int); va_end(list); } mode; })
int open(const char *path, int flags, ...) { return open_at(AT_FDCWD, path, flags, MODE(flags)); }
int open64(const char *path, int flags, ...) { return open_at(AT_FDCWD, path, flags, MODE(flags)); }
int openat(int at, const char *path, int flags, ...) { return open_at(at, path, flags, MODE(flags)); }
int openat64(int at, const char *path, int flags, ...) { return open_at(at, path, flags, MODE(flags)); }
int creat(const char *path, mode_t mode) { return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

/* The caller must hold the lock. */
static void forget(int fd) {
    free(names[fd]);
    names[fd] = NULL;
    record(CLOSE, fd, 0, 0, 0, NULL, NULL, NULL);
}

int close(int fd) {
    if (!name_of(fd)) return syscall(SYS_close, fd);
    pthread_mutex_lock(&lock);
    forget(fd);
    int result = syscall(SYS_close, fd);
    pthread_mutex_unlock(&lock);
    return result;
}

/* Closes its descriptor without a call that could be intercepted. Another thread may get the number at once: the name has
   to go before. */
int fclose(FILE *file) {
    int fd = fileno(file);
    if (name_of(fd)) {
        pthread_mutex_lock(&lock);
        forget(fd);
        pthread_mutex_unlock(&lock);
    }
    return REAL(fclose)(file);
}

/* Writes at an offset, or at the descriptor's position if it is -1. */
static ssize_t write_at(int fd, const void *bytes, size_t count, off_t offset, uint32_t call) {
    int is_positioned = offset >= 0;
    if (!name_of(fd)) {
        return is_positioned ? syscall(SYS_pwrite64, fd, bytes, count, offset) : syscall(SYS_write, fd, bytes, count);
    }
    if (faults && faults->error && (faults->calls & call)) {
        if ((faults->calls & F_HALVES) && !halved && count > 1) {
            halved = 1;
            count /= 2;
        } else if (fails(call)) {
            halved = 0;
            return -1;
        }
    }
    pthread_mutex_lock(&lock);
    int is_appending = syscall(SYS_fcntl, fd, F_GETFL) & O_APPEND;
    if (!is_positioned) offset = syscall(SYS_lseek, fd, 0, is_appending ? SEEK_END : SEEK_CUR);
    ssize_t written =
        is_positioned ? syscall(SYS_pwrite64, fd, bytes, count, offset) : syscall(SYS_write, fd, bytes, count);
    if (written > 0) record(WRITE, fd, 0, offset, written, NULL, NULL, bytes);
    pthread_mutex_unlock(&lock);
    return written;
}

ssize_t write(int fd, const void *bytes, size_t count) { return write_at(fd, bytes, count, -1, F_WRITE); }
ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset) { return write_at(fd, bytes, count, offset, F_PWRITE); }
ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t offset) { return write_at(fd, bytes, count, offset, F_PWRITE); }

/* Recorded as separate writes, because a writev may be cut short. */
static ssize_t writev_at(int fd, const struct iovec *parts, int count, off_t offset, uint32_t call) {
    ssize_t whole = 0;
    for (int part = 0; part < count; part++) {
        if (!parts[part].iov_len) continue;
        ssize_t written = write_at(fd, parts[part].iov_base, parts[part].iov_len, offset < 0 ? -1 : offset + whole, call);
        if (written < 0) return whole ? whole : -1;
        whole += written;
        if ((size_t)written < parts[part].iov_len) return whole;
    }
    return whole;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    return name_of(fd) ? writev_at(fd, parts, count, -1, F_WRITE) : syscall(SYS_writev, fd, parts, count);
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    return name_of(fd) ? writev_at(fd, parts, count, offset, F_PWRITE) : REAL(pwritev)(fd, parts, count, offset);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) { return pwritev(fd, parts, count, offset); }

static void unexpected(const char *call, int fd) {
    if (name_of(fd)) fail(call);
}
ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *where, size_t count, unsigned flags) {
    unexpected("copy_file_range is not recorded", to);
    return syscall(SYS_copy_file_range, from, at, to, where, count, flags);
}
ssize_t sendfile(int to, int from, off_t *at, size_t count) {
    unexpected("sendfile is not recorded", to);
    return syscall(SYS_sendfile, to, from, at, count);
}
ssize_t sendfile64(int to, int from, off64_t *at, size_t count) { return sendfile(to, from, at, count); }
void *mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
    if ((flags & MAP_SHARED) && (protection & PROT_WRITE)) unexpected("writes through mmap are not recorded", fd);
    return (void *)syscall(SYS_mmap, at, length, protection, flags, fd, offset);
}
void *mmap64(void *at, size_t length, int protection, int flags, int fd, off64_t offset) {
    return mmap(at, length, protection, flags, fd, offset);
}

int ftruncate(int fd, off_t length) {
    if (!name_of(fd)) return syscall(SYS_ftruncate, fd, length);
    if (fails(F_FTRUNCATE)) return -1;
    pthread_mutex_lock(&lock);
    int result = syscall(SYS_ftruncate, fd, length);
    if (!result) record(TRUNCATE, fd, 0, 0, length, NULL, NULL, NULL);
    pthread_mutex_unlock(&lock);
    return result;
}
int ftruncate64(int fd, off64_t length) { return ftruncate(fd, length); }

int truncate(const char *path, off_t length) {
    char whole[PATH_MAX];
    const char *name = resolve(AT_FDCWD, path, whole);
    if (!name) return syscall(SYS_truncate, path, length);
    if (fails(F_FTRUNCATE)) return -1;
    pthread_mutex_lock(&lock);
    int result = syscall(SYS_truncate, path, length);
    if (!result) record(TRUNCATE, -1, 0, 0, length, name, NULL, NULL);
    pthread_mutex_unlock(&lock);
    return result;
}
int truncate64(const char *path, off64_t length) { return truncate(path, length); }

int fallocate(int fd, int mode, off_t offset, off_t length) {
    if (!name_of(fd)) return syscall(SYS_fallocate, fd, mode, offset, length);
    if (fails(F_FALLOCATE)) return -1;
    pthread_mutex_lock(&lock);
    int result = syscall(SYS_fallocate, fd, mode, offset, length);
    if (!result) record(ALLOCATE, fd, mode, offset, length, NULL, NULL, NULL);
    pthread_mutex_unlock(&lock);
    return result;
}
int fallocate64(int fd, int mode, off64_t offset, off64_t length) { return fallocate(fd, mode, offset, length); }
int posix_fallocate(int fd, off_t offset, off_t length) {
    return fallocate(fd, 0, offset, length) ? errno : 0;
}
int posix_fallocate64(int fd, off64_t offset, off64_t length) { return posix_fallocate(fd, offset, length); }

static int sync_file(int fd, long number, uint32_t call) {
    if (!name_of(fd)) return syscall(number, fd);
    if (fails(call)) return -1;
    pthread_mutex_lock(&lock);
    record(SYNC_BEGIN, fd, 0, 0, 0, NULL, NULL, NULL);
    pthread_mutex_unlock(&lock);
    int result = syscall(number, fd);
    pthread_mutex_lock(&lock);
    if (!result) record(SYNC_END, fd, 0, 0, 0, NULL, NULL, NULL);
    pthread_mutex_unlock(&lock);
    return result;
}
int fsync(int fd) { return sync_file(fd, SYS_fsync, F_FSYNC); }
int fdatasync(int fd) { return sync_file(fd, SYS_fdatasync, F_FDATASYNC); }

static int two_paths(enum operation operation, long number, int from_at, const char *from, int to_at, const char *to,
                     int flags, uint32_t call) {
    char whole_from[PATH_MAX], whole_to[PATH_MAX];
    const char *first = resolve(from_at, from, whole_from), *second = resolve(to_at, to, whole_to);
    if (!first && !second) return syscall(number, from_at, from, to_at, to, flags);
    if (fails(call)) return -1;
    pthread_mutex_lock(&lock);
    int result = syscall(number, from_at, from, to_at, to, flags);
    if (!result) record(operation, -1, flags, 0, 0, first, second, NULL);
    pthread_mutex_unlock(&lock);
    return result;
}
int rename(const char *from, const char *to) {
    return two_paths(RENAME, SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0, F_RENAME);
}
int renameat(int from_at, const char *from, int to_at, const char *to) {
    return two_paths(RENAME, SYS_renameat2, from_at, from, to_at, to, 0, F_RENAME);
}
int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags) {
    return two_paths(RENAME, SYS_renameat2, from_at, from, to_at, to, flags, F_RENAME);
}
int link(const char *from, const char *to) {
    return two_paths(LINK, SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0, F_LINK);
}
int linkat(int from_at, const char *from, int to_at, const char *to, int flags) {
    return two_paths(LINK, SYS_linkat, from_at, from, to_at, to, flags, F_LINK);
}

static int remove_at(int at, const char *path, int flags) {
    char whole[PATH_MAX];
    const char *name = resolve(at, path, whole);
    if (!name) return syscall(SYS_unlinkat, at, path, flags);
    if (fails(F_UNLINK)) return -1;
    pthread_mutex_lock(&lock);
    int result = syscall(SYS_unlinkat, at, path, flags);
    if (!result) record(flags & AT_REMOVEDIR ? RMDIR : UNLINK, -1, 0, 0, 0, name, NULL, NULL);
    pthread_mutex_unlock(&lock);
    return result;
}
int unlink(const char *path) { return remove_at(AT_FDCWD, path, 0); }
int unlinkat(int at, const char *path, int flags) { return remove_at(at, path, flags); }
int rmdir(const char *path) { return remove_at(AT_FDCWD, path, AT_REMOVEDIR); }

static int make_directory(int at, const char *path, mode_t mode) {
    char whole[PATH_MAX];
    const char *name = resolve(at, path, whole);
    if (!name) return syscall(SYS_mkdirat, at, path, mode);
    if (fails(F_MKDIR)) return -1;
    pthread_mutex_lock(&lock);
    int result = syscall(SYS_mkdirat, at, path, mode);
    if (!result) record(MKDIR, -1, 0, 0, 0, name, NULL, NULL);
    pthread_mutex_unlock(&lock);
    return result;
}
int mkdir(const char *path, mode_t mode) { return make_directory(AT_FDCWD, path, mode); }
int mkdirat(int at, const char *path, mode_t mode) { return make_directory(at, path, mode); }
