/* A program that moves its break in every way, and writes down what the kernel says: the same without a
   supervisor and with one. It exits with 0 if memory that it got anew was zero and what it wrote was kept. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB (1ul << 10)
#define MIB (1ul << 20)
#define STEP (132 * KIB)
#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno); _exit(9); } } while (0)

static int out;
static char *base;
static long page;

static char *now(void) { return (char *)syscall(SYS_brk, 0); }
/* What the kernel answers to a wish, from where the heap stood first. */
static long ask(char *to) { char *got = (char *)syscall(SYS_brk, to); brk(got); return got - base; }
/* dprintf may take memory of the heap. */
static void say(const char *what, long value) {
    char line[64];
    int bytes = snprintf(line, sizeof line, "%s %ld\n", what, value);
    CHECK(write(out, line, bytes) == bytes);
}
static void zero(char *from, char *to) { for (char *p = from; p < to; p++) CHECK(*p == 0); }
static void fill(char *from, char *to) { for (char *p = from; p < to; p += 64) *p = (char)((p - base) / 64 * 7 | 1); }
static void holds(char *from, char *to) { for (char *p = from; p < to; p += 64) CHECK(*p == (char)((p - base) / 64 * 7 | 1)); }
static char *next_page(char *p) { return (char *)(((uintptr_t)p + page - 1) & -page); }
/* Fills from a multiple of 64, as it is checked. */
static char *even(char *p) { return base + (p - base + 63) / 64 * 64; }

static void grow(const char *what, size_t bytes) {
    char *from = now(), *to = from + bytes;
    long got = ask(to);
    say(what, got);
    if (base + got == to) { zero(next_page(from), to); fill(even(from), to); }
}
static void in_a_child(void (*run)(void)) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) { run(); _exit(0); }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
static void shrinks_and_grows(void) {
    say("forked", now() - base);
    say("less", ask(now() - MIB - 77));
    for (int i = 0; i < 40; i++) grow("child", STEP);
    holds(base, now() - 40 * STEP);
}
/* The soft limit alone: the hard one may not be raised. */
static struct rlimit at_most(int resource, rlim_t bytes) {
    struct rlimit limit;
    CHECK(getrlimit(resource, &limit) == 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    return limit;
}
static void limited(void) {
    struct rlimit limit = at_most(RLIMIT_DATA, now() - base + 3 * MIB);
    CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
    for (int i = 0; i < 40; i++) grow("data", STEP);
}
static void few_addresses(void) {
    struct rlimit limit = at_most(RLIMIT_AS, 256 * MIB);
    CHECK(prlimit(0, RLIMIT_AS, &limit, 0) == 0);
    long last = 0, got;
    while ((got = ask(now() + STEP)) != last) last = got;
    /* What the limit leaves for mappings is what it leaves alone. */
    int maps = 0;
    while (mmap(0, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) maps++;
    say("addresses", last);
    say("maps", maps);
}
static void locked(void) {
    say("mlockall", mlockall(MCL_FUTURE));
    for (int i = 0; i < 20; i++) grow("locked", STEP);
}
static void set_by_prctl(void) {
    say("prctl", prctl(PR_SET_MM, PR_SET_MM_BRK, now() - 5 * page, 0, 0));
    say("set", now() - base);
    for (int i = 0; i < 3; i++) say("after", ask(now() - 16 * page));
    for (int i = 0; i < 3; i++) grow("again", page);
}
static void mallocs(void) {
    static char *held[60000];
    mallopt(M_TRIM_THRESHOLD, 64 * KIB);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 60000; i++) { held[i] = malloc(100 + i % 200); CHECK(held[i]); memset(held[i], i, 100); }
        say("malloc", now() - base);
        for (int i = 60000; i-- > 0;) { CHECK(held[i][99] == (char)i); free(held[i]); }
        malloc_trim(0);
        say("free", now() - base);
    }
}
static void walls(void) {
    /* A mapping right at the break, one a little above it, and one in memory that is the heap's. */
    for (long above = 0; above <= 2 * (long)MIB; above += MIB) {
        grow("step", 300 * KIB);
        char *at = next_page(now()) + above;
        char *wall = mmap(at, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        say("wall", wall == at ? above : -1);
        *wall = 3;
        for (int i = 0; i < 20; i++) grow("wall", STEP);
        CHECK(*wall == 3);
        CHECK(munmap(wall, page) == 0);
        for (int i = 0; i < 20; i++) grow("no wall", STEP);
    }
    /* A file that lies over the heap's end keeps what it has when the break goes below it. */
    grow("to a file", 300 * KIB);
    int file = memfd_create("file", 0);
    char byte = 'x';
    CHECK(file >= 0 && ftruncate(file, page) == 0 && pwrite(file, &byte, 1, 0) == 1);
    char *over = next_page(now()) - 8 * page;
    CHECK(mmap(over, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == over && *over == 'x');
    say("file", ask(now() - 20 * page));
    CHECK(pread(file, &byte, 1, 0) == 1 && byte == 'x' && close(file) == 0);
    grow("after a file", 20 * page);
    char *inside = next_page(now()) - 3 * MIB;
    CHECK(mmap(inside, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == inside);
    say("inside", ask(now() - 5 * MIB));
    say("outside", ask(now() + 5 * MIB));
    zero(next_page(now() - 5 * MIB), now());
}
static char **again;
static void run_again(void) { execl(again[0], again[0], "fresh", again[2], (char *)0); _exit(9); }
static void *under_lock(void *lock) {
    for (int i = 0; i < 200; i++) {
        pthread_mutex_lock(lock);
        char *p = sbrk(40 * KIB);
        CHECK(p != (void *)-1);
        pthread_mutex_unlock(lock);
        zero(next_page(p), p + 40 * KIB);
        memset(p, 1, 40 * KIB);
    }
    return 0;
}
static char *low;
static void *at_once(void *seed) {
    uint64_t state = (uintptr_t)seed;
    for (int i = 0; i < 400; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        syscall(SYS_brk, low + (state >> 33) % (9 * MIB));
    }
    return 0;
}
static void threads(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_t t[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&t[i], 0, under_lock, &lock) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(t[i], 0) == 0);
    say("under a lock", now() - base);
    low = next_page(now());
    ask(low);
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&t[i], 0, at_once, (void *)(uintptr_t)(i + 1)) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(t[i], 0) == 0);
    zero(low, now());
    fill(even(low), now());
    ask(low);
    say("at once", ask(low + 9 * MIB));
    zero(low, now());
    ask(low);
}
static volatile sig_atomic_t alarms;
static void on_alarm(int s) { (void)s; alarms++; }

int main(int count, char **words) {
    CHECK(count > 2);
    out = open(words[2], O_WRONLY | O_CREAT | O_APPEND, 0600);
    CHECK(out >= 0);
    page = sysconf(_SC_PAGESIZE);
    base = now();
    if (!strcmp(words[1], "fresh")) { for (int i = 0; i < 40; i++) grow("fresh", STEP); return 0; }
    in_a_child(mallocs);
    struct sigaction alarm = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
    struct itimerval every = { { 0, 700 }, { 0, 700 } }, never = { { 0, 0 }, { 0, 0 } };
    CHECK(sigaction(SIGALRM, &alarm, 0) == 0 && setitimer(ITIMER_REAL, &every, 0) == 0);
    for (int i = 0; i < 160; i++) grow("grow", STEP);
    CHECK(setitimer(ITIMER_REAL, &never, 0) == 0 && alarms > 0);
    /* The break is a byte, not a page; what is nonsense changes nothing. */
    for (int i = 0; i < 10; i++) grow("bytes", 777);
    say("same", ask(now()));
    say("one", ask((char *)1));
    say("far", ask(base + (1ul << 46)));
    say("all", ask((char *)-1));
    holds(base, now());
    say("shrink", ask(now() - 3 * MIB - 77));
    holds(base, now());
    grow("regrow", 3 * MIB + 77);
    for (int i = 0; i < 60; i++) { say("flap", ask(now() - 30000 - i * 4001)); grow("flap", 30000 + i * 4001); }
    holds(base, now());
    in_a_child(shrinks_and_grows);
    in_a_child(limited);
    in_a_child(few_addresses);
    in_a_child(locked);
    in_a_child(set_by_prctl);
    say("parent", now() - base);
    holds(base, now());
    char *before = now();
    pid_t pid = vfork();
    CHECK(pid >= 0);
    if (!pid) { syscall(SYS_brk, before + 5 * MIB + 1); _exit(0); }
    CHECK(waitpid(pid, 0, 0) == pid);
    say("vfork", ask(now()));
    zero(next_page(before), now());
    walls();
    threads();
    again = words;
    in_a_child(run_again);
    /* A program that begins with a limit. */
    struct rlimit limit = at_most(RLIMIT_DATA, 5 * MIB);
    CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
    run_again();
}
