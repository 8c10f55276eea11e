/* A program that does what makes life hard for a supervisor: one trouble a name. It exits with 0 if all went
   as it goes without one. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno); exit(9); } } while (0)

static char *buffer(size_t bytes) {
    char *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}
static void fill(char *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 512) { CHECK(p[i] == 0); p[i] = (char)(i / 512 * 7 + 1); }
}
static void holds(char *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 512) CHECK(p[i] == (char)(i / 512 * 7 + 1));
}
static int touch(void) { char *p = buffer(64 * MIB); fill(p, 64 * MIB); holds(p, 64 * MIB); return 0; }

static int grow(void) {
    char *p = buffer(64 * MIB);
    fill(p, 64 * MIB);
    /* Something in the way, so that it moves too. */
    char *wall = mmap(p + 64 * MIB, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    (void)wall;
    for (size_t size = 64 * MIB; size < 160 * MIB; size += 32 * MIB) {
        p = mremap(p, size, size + 32 * MIB, MREMAP_MAYMOVE);
        if (p == MAP_FAILED) abort();
        holds(p, 64 * MIB);
    }
    p = mremap(p, 160 * MIB, 32 * MIB, MREMAP_MAYMOVE);
    if (p == MAP_FAILED) abort();
    holds(p, 32 * MIB);
    return 0;
}
/* A forked child has what its parent had, and grows it too: where it lies, and where there is no room. */
static void grows(char *p, size_t size) {
    char *wall = mmap(p + size, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    (void)wall;
    for (int round = 0; round < 2; round++, size += 32 * MIB) {
        p = mremap(p, size, size + 32 * MIB, MREMAP_MAYMOVE);
        if (p == MAP_FAILED) abort();
        holds(p, 64 * MIB);
        for (size_t i = size; i < size + 32 * MIB; i += 4096) { CHECK(p[i] == 0); p[i] = 3; }
    }
    if (mremap(p, size, size + 64 * MIB, 0) != MAP_FAILED) size += 64 * MIB; else CHECK(errno == ENOMEM);
    p = mremap(p, size, 96 * MIB, MREMAP_MAYMOVE);
    if (p == MAP_FAILED) abort();
    holds(p, 64 * MIB);
    CHECK(p[96 * MIB - 4096] == 3 && munmap(p, 96 * MIB) == 0);
}
static int fork_grow(void) {
    char *p = buffer(64 * MIB);
    fill(p, 64 * MIB);
    for (int i = 0; i < 2; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (!pid) { if (i) p[64 * MIB - 1] = 9; grows(p, 64 * MIB); _exit(3); }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 3);
    }
    grows(p, 64 * MIB);
    return 0;
}
static int against(void) {
    char *p = buffer(64 * MIB);
    CHECK(madvise(p, 64 * MIB, MADV_NOHUGEPAGE) == 0);
    fill(p, 64 * MIB);
    return 0;
}
static int off(void) { CHECK(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0); return touch(); }

static int forks(void) {
    char *p = buffer(64 * MIB);
    fill(p, 4 * MIB);
    for (int round = 0; round < 10; round++) {
        pid_t pids[100];
        for (int i = 0; i < 100; i++) {
            pids[i] = fork();
            CHECK(pids[i] >= 0);
            if (!pids[i]) { p[i] = 5; munmap(buffer(8 * MIB), 8 * MIB); _exit(i % 50); }
        }
        for (int i = 0; i < 100; i++) {
            int status;
            CHECK(waitpid(pids[i], &status, 0) == pids[i]);
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == i % 50);
        }
    }
    holds(p, 4 * MIB);
    return 0;
}
static void *maps(void *seed) {
    for (int i = 0; i < 60; i++) {
        size_t bytes = (2 + ((uintptr_t)seed + i) % 7) * MIB;
        char *p = buffer(bytes);
        p[0] = 1; p[bytes - 1] = 2;
        CHECK(p[0] == 1 && p[bytes - 1] == 2 && p[bytes / 2] == 0);
        CHECK(munmap(p, bytes) == 0);
    }
    return 0;
}
static int threads(void) {
    pthread_t t[16];
    for (int i = 0; i < 16; i++) CHECK(pthread_create(&t[i], 0, maps, (void *)(uintptr_t)i) == 0);
    for (int i = 0; i < 16; i++) CHECK(pthread_join(t[i], 0) == 0);
    return touch();
}
static void *execs(void *me) { execl(me, me, "touch", (char *)0); return 0; }
static int thread_exec(char *me) {
    pthread_t t, other;
    CHECK(pthread_create(&other, 0, maps, 0) == 0);
    CHECK(pthread_create(&t, 0, execs, me) == 0);
    for (;;) pause();
}
static volatile sig_atomic_t traps, alarms;
static void on_trap(int s) { (void)s; traps++; }
static void on_alarm(int s) { (void)s; alarms++; }
static int signals(void) {
    struct sigaction trap = { .sa_handler = on_trap }, alarm = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
    CHECK(sigaction(SIGTRAP, &trap, 0) == 0 && sigaction(SIGALRM, &alarm, 0) == 0);
    for (int i = 0; i < 10; i++) raise(SIGTRAP);
    CHECK(traps == 10);
    struct itimerval every = { { 0, 500 }, { 0, 500 } }, never = { { 0, 0 }, { 0, 0 } };
    CHECK(setitimer(ITIMER_REAL, &every, 0) == 0);
    maps(0); maps((void *)3); touch();
    sigset_t before, after;
    CHECK(sigprocmask(SIG_BLOCK, 0, &before) == 0);
    maps(0);
    CHECK(sigprocmask(SIG_BLOCK, 0, &after) == 0 && memcmp(&before, &after, 8) == 0);
    CHECK(setitimer(ITIMER_REAL, &never, 0) == 0);
    CHECK(alarms > 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) { maps(0); raise(SIGSTOP); maps(0); _exit(6); }
    int status;
    CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    usleep(20000);
    CHECK(waitpid(pid, &status, WNOHANG) == 0);
    CHECK(kill(pid, SIGCONT) == 0);
    CHECK(waitpid(pid, &status, WCONTINUED) == pid);
    if (WIFCONTINUED(status)) CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 6);
    return 0;
}
/* Stopped again and again from outside while it maps. */
static int stops(void) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) { for (int i = 0; i < 20; i++) maps(0); _exit(7); }
    int status;
    for (int i = 0; i < 200; i++) {
        if (kill(pid, SIGSTOP) != 0) break;
        CHECK(waitpid(pid, &status, WUNTRACED) == pid);
        if (!WIFSTOPPED(status)) { CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7); return 0; }
        CHECK(kill(pid, SIGCONT) == 0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    return 0;
}
static int filter(void) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { 4, steps };
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    return touch();
}
static int tracer(void) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) { for (;;) pause(); }
    long seized = ptrace(PTRACE_SEIZE, pid, 0, 0);
    CHECK(kill(pid, SIGKILL) == 0);
    CHECK(seized == 0 || errno == EPERM);
    int status;
    while (waitpid(pid, &status, __WALL) == pid && !WIFSIGNALED(status)) {}
    return 0;
}
static int unmap(void) { touch(); munmap(0, 1ul << 46); munmap((void *)4096, (1ul << 47) - 8192); return 0; }
static int many(void) {
    char *p = buffer(64 * MIB);
    fill(p, 64 * MIB);
    char *q = buffer(60000 * 4096ul);
    for (size_t i = 0; i < 60000; i += 2) CHECK(mprotect(q + i * 4096, 4096, PROT_NONE) == 0);
    holds(p, 64 * MIB);
    CHECK(munmap(p, 64 * MIB) == 0);
    return touch();
}
static int sparse(void) {
    char *p = buffer(1ul << 40);
    for (size_t i = 0; i < 20; i++) p[i * (50ul << 30) + 12345] = (char)(i + 1);
    for (size_t i = 0; i < 20; i++) CHECK(p[i * (50ul << 30) + 12345] == (char)(i + 1));
    return 0;
}
static int untraced(void) {
    pid_t pid = syscall(SYS_clone, CLONE_UNTRACED | SIGCHLD, 0, 0, 0, 0);
    CHECK(pid >= 0);
    if (!pid) { touch(); _exit(4); }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 4);
    uint64_t arguments[11] = { CLONE_UNTRACED, 0, 0, 0, SIGCHLD, 0, 0, 0, 0, 0, 0 };
    pid = syscall(SYS_clone3, arguments, sizeof arguments);
    CHECK(pid >= 0);
    if (!pid) { touch(); _exit(5); }
    CHECK(arguments[0] == CLONE_UNTRACED);
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 5);
    return 0;
}
static int heap(void) {
    /* As a malloc does: by less than a huge page at a time, touched at once. */
    char *start = sbrk(0);
    for (int i = 0; i < 256; i++) { char *p = sbrk(132 * 1024); CHECK(p != (void *)-1); memset(p, i, 132 * 1024); }
    for (int round = 0; round < 100; round++) {
        usleep(20000);
        FILE *f = fopen("/proc/self/smaps_rollup", "r");
        char line[200]; long huge = 0;
        CHECK(f);
        while (fgets(line, sizeof line, f)) sscanf(line, "AnonHugePages: %ld", &huge);
        fclose(f);
        if (huge >= 16384) break;
    }
    for (int i = 0; i < 256; i++) CHECK(start[(size_t)i * 132 * 1024 + 77] == (char)i);
    return 0;
}
static int steps(void) {
    for (int i = 0; i < 256; i++) { char *p = sbrk(132 * 1024); CHECK(p != (void *)-1); memset(p, i, 132 * 1024); }
    struct rusage used;
    CHECK(getrusage(RUSAGE_SELF, &used) == 0);
    return (int)(used.ru_minflt / 100);
}
static int sleeps(void) {
    /* Calls that a stop interrupts must go on as if there had been none. */
    int fds[2]; char byte; CHECK(pipe(fds) == 0);
    struct timespec a, b, nap = { 0, 400000000 }, left = { 0, 0 };
    CHECK(clock_gettime(CLOCK_MONOTONIC, &a) == 0);
    CHECK(nanosleep(&nap, &left) == 0);
    CHECK(clock_gettime(CLOCK_MONOTONIC, &b) == 0);
    CHECK((b.tv_sec - a.tv_sec) * 1000000000L + b.tv_nsec - a.tv_nsec >= 400000000L);
    pid_t pid = fork();
    if (!pid) { usleep(300000); CHECK(write(fds[1], "x", 1) == 1); _exit(0); }
    CHECK(read(fds[0], &byte, 1) == 1 && byte == 'x');
    CHECK(waitpid(pid, 0, 0) == pid);
    return 0;
}

int main(int count, char **words) {
    (void)count;
    const char *what = words[1];
    if (!strcmp(what, "touch")) return touch();
    if (!strcmp(what, "grow")) return grow();
    if (!strcmp(what, "fork_grow")) return fork_grow();
    if (!strcmp(what, "against")) return against();
    if (!strcmp(what, "off")) return off();
    if (!strcmp(what, "forks")) return forks();
    if (!strcmp(what, "threads")) return threads();
    if (!strcmp(what, "signals")) return signals();
    if (!strcmp(what, "stops")) return stops();
    if (!strcmp(what, "filter")) return filter();
    if (!strcmp(what, "tracer")) return tracer();
    if (!strcmp(what, "unmap")) return unmap();
    if (!strcmp(what, "many")) return many();
    if (!strcmp(what, "sparse")) return sparse();
    if (!strcmp(what, "untraced")) return untraced();
    if (!strcmp(what, "heap")) return heap();
    if (!strcmp(what, "steps")) return steps();
    if (!strcmp(what, "sleeps")) return sleeps();
    if (!strcmp(what, "exec")) { execl(words[0], words[0], "touch", (char *)0); return 9; }
    if (!strcmp(what, "thread_exec")) return thread_exec(words[0]);
    if (!strcmp(what, "at_once")) _exit(5);
    if (!strcmp(what, "killed")) { touch(); kill(getpid(), SIGKILL); }
    if (!strcmp(what, "user")) return geteuid() == 65534 ? 0 : 9;
    if (!strcmp(what, "wait")) { touch(); for (;;) pause(); }
    return 8;
}
