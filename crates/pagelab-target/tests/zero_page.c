// Programs with memory that was read and never written, each with something that forbids to drop its entries, or
// that writes there meanwhile. Usage: zero_page WHAT FOLDER. It says `ready ADDRESS BYTES` and works
// until FOLDER/stop is there; then `all right`, if its memory has what it wrote and zeros else.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define BYTES (8ul << 20)
#define THREADS 3

static unsigned char *memory;
static char stop_file[4096];
// What each thread wrote of its own pages: one byte a page.
static unsigned char *written;
static volatile int is_over;

static void must(int right, const char *what) {
    if (!right) {
        perror(what);
        exit(9);
    }
}

static int over(void) { return access(stop_file, F_OK) == 0; }

static uint64_t mixed(uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static unsigned char *map(int flags) {
    unsigned char *at = mmap(NULL, BYTES + (2 << 20), PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0);
    must(at != MAP_FAILED, "mmap");
    at = (unsigned char *)(((uintptr_t)at + (2 << 20) - 1) & ~(uintptr_t)((2 << 20) - 1));
    return at;
}

static void read_all(void) {
    for (size_t at = 0; at < BYTES; at += PAGE) must(((volatile unsigned char *)memory)[at] == 0, "no zero");
}

// Reads and writes at random, each thread its own pages, and gives some back; what it reads must be what it wrote.
static void *works(void *number) {
    uint64_t seed = (uint64_t)(uintptr_t)number + 1;
    size_t pages = BYTES / PAGE;
    for (uint64_t n = 0; !is_over; n++) {
        uint64_t draw = mixed(seed * 0x9e3779b97f4a7c15ull + n);
        size_t page = draw % pages / THREADS * THREADS + (uintptr_t)number;
        if (page >= pages) continue;
        volatile unsigned char *at = memory + page * PAGE + (draw >> 40) % PAGE / 64 * 64;
        volatile unsigned char *first = memory + page * PAGE;
        must(*first == written[page], "lost");
        switch ((draw >> 20) % 64) {
        case 0:
            written[page] = (unsigned char)(draw >> 50) | 1;
            *first = written[page];
            break;
        case 1:
        case 2:
            must(madvise((void *)first, PAGE, MADV_DONTNEED) == 0, "madvise");
            written[page] = 0;
            must(*first == 0, "not released");
            break;
        default:
            (void)*at;
        }
        must(*first == written[page], "lost at once");
    }
    return NULL;
}

static int sleeps(void *nothing) {
    (void)nothing;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (!over()) usleep(20000);
    _exit(0);
}

static int faults(void) {
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    must(fd >= 0, "userfaultfd");
    struct uffdio_api api = {.api = UFFD_API};
    must(ioctl(fd, UFFDIO_API, &api) == 0, "UFFDIO_API");
    return fd;
}

static void watched(int fd, uint64_t mode) {
    struct uffdio_register range = {.range = {(uintptr_t)memory, BYTES}, .mode = mode};
    must(ioctl(fd, UFFDIO_REGISTER, &range) == 0, "UFFDIO_REGISTER");
}

// A child has the only descriptor left.
static void handed_on(int fd) {
    pid_t parent = getpid();
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (getppid() == parent && !over()) usleep(20000);
        _exit(0);
    }
    close(fd);
}

int main(int argc, char **argv) {
    must(argc == 3, "usage: zero_page WHAT FOLDER");
    const char *what = argv[1];
    snprintf(stop_file, sizeof stop_file, "%s/stop", argv[2]);
    int flags = strcmp(what, "shared") == 0 ? MAP_SHARED : MAP_PRIVATE;
    memory = map(flags);
    must(madvise(memory, BYTES, strcmp(what, "huge") == 0 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) == 0, "madvise");
    written = calloc(BYTES / PAGE, 1);
    read_all();
    pthread_t threads[THREADS];
    int is_working = strcmp(what, "works") == 0;
    if (strcmp(what, "locked") == 0) {
        must(mlock(memory, BYTES) == 0, "mlock");
        // mlock writes to what it locks; a part that was locked on fault is of zeros.
        must(munlock(memory, BYTES) == 0 && madvise(memory, BYTES, MADV_DONTNEED) == 0, "munlock");
        must(syscall(SYS_mlock2, memory, BYTES, 1) == 0, "mlock2");
        read_all();
    } else if (strcmp(what, "missing") == 0) {
        int fd = faults();
        watched(fd, UFFDIO_REGISTER_MODE_MISSING);
        handed_on(fd);
    } else if (strcmp(what, "protected") == 0) {
        int fd = faults();
        watched(fd, UFFDIO_REGISTER_MODE_WP);
        handed_on(fd);
    } else if (strcmp(what, "userfaultfd") == 0) {
        faults();
    } else if (strcmp(what, "io_uring") == 0) {
        char parameters[120] = {0};
        int fd = (int)syscall(SYS_io_uring_setup, 4, parameters);
        if (fd < 0) {
            puts("absent");
            return 0;
        }
    } else if (strcmp(what, "polling") == 0) {
        // A thread of the kernel that writes for the program, and no descriptor in this table.
        char parameters[120] = {0};
        *(uint32_t *)(parameters + 8) = 1 << 1;
        int fd = (int)syscall(SYS_io_uring_setup, 4, parameters);
        if (fd < 0) {
            puts("absent");
            return 0;
        }
        handed_on(fd);
    } else if (strcmp(what, "device") == 0) {
        if (open("/dev/loop-control", O_RDWR) < 0) {
            puts("absent");
            return 0;
        }
    } else if (strcmp(what, "sharing") == 0) {
        char *stack = malloc(1 << 16);
        must(clone(sleeps, stack + (1 << 16), CLONE_VM | SIGCHLD, NULL) > 0, "clone");
    } else if (is_working) {
        for (uintptr_t n = 0; n < THREADS; n++)
            must(pthread_create(&threads[n], NULL, works, (void *)n) == 0, "pthread_create");
    } else {
        must(strcmp(what, "plain") == 0 || strcmp(what, "shared") == 0 || strcmp(what, "huge") == 0, what);
        eventfd(0, 0);
        must(open("/dev/null", O_RDWR) >= 0, "/dev/null");
    }
    printf("ready %lx %lx\n", (unsigned long)(uintptr_t)memory, BYTES);
    fflush(stdout);
    while (!over()) usleep(2000);
    is_over = 1;
    for (uintptr_t n = 0; is_working && n < THREADS; n++) pthread_join(threads[n], NULL);
    for (size_t at = 0; at < BYTES && strcmp(what, "missing") != 0; at++) {
        unsigned char wanted = at % PAGE == 0 ? written[at / PAGE] : 0;
        must(((volatile unsigned char *)memory)[at] == wanted, "changed");
    }
    puts("all right");
    return 0;
}
