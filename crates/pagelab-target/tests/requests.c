/* Programs that go on with what they do, one habit a name, while calls are made in their name: until the file
   `stop` is in the folder that is named, and so many rounds at least. Then what the first rounds came to is in
   the file `said`, and it waits to be read. It ends with 9 where anything went otherwise than it goes
   alone. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/rseq.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno); _exit(9); } } while (0)

extern char **environ;
static const char *folder, *me;
static int is_over(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/stop", folder);
    return access(path, F_OK) == 0;
}
static void say(uint64_t sum) {
    char path[4096], line[64];
    snprintf(path, sizeof path, "%s/said", folder);
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    int count = snprintf(line, sizeof line, "%016llx\n", (unsigned long long)sum);
    CHECK(fd >= 0 && write(fd, line, count) == count && close(fd) == 0);
    for (;;) pause();
}
static uint64_t draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Steps that were made, where somebody looks at them. */
static atomic_ulong *steps;

/* Maps, unmaps, moves, grows and cuts; what it keeps stays mapped to the end. */
struct slot { char *at; size_t pages; char mark; };
struct mapper { uint64_t state, sum; unsigned rounds; };
static void *maps(void *argument) {
    struct mapper *m = argument;
    struct slot slots[32] = { { 0, 0, 0 } };
    for (unsigned round = 0; round < m->rounds || !is_over(); round++) {
        for (int step = 0; step < 20; step++) {
            if (steps) atomic_fetch_add(steps, 1);
            struct slot *slot = &slots[draw(&m->state) % 32];
            size_t pages = 1 + draw(&m->state) % 40;
            uint64_t what = draw(&m->state) % 4;
            if (!slot->at) {
                slot->at = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                CHECK(slot->at != MAP_FAILED);
                slot->pages = pages;
                slot->mark = (char)(1 + draw(&m->state) % 100);
                for (size_t i = 0; i < pages; i++) { CHECK(slot->at[i * PAGE] == 0); slot->at[i * PAGE] = slot->mark; }
                continue;
            }
            for (size_t i = 0; i < slot->pages; i++) CHECK(slot->at[i * PAGE] == slot->mark);
            if (round < m->rounds) m->sum = m->sum * 31 + (unsigned char)slot->mark * slot->pages;
            if (what == 0) {
                CHECK(munmap(slot->at, slot->pages * PAGE) == 0);
                slot->at = 0;
            } else if (what == 1 && slot->pages > 2) {
                size_t kept = slot->pages / 2;
                CHECK(munmap(slot->at + kept * PAGE, (slot->pages - kept) * PAGE) == 0);
                slot->pages = kept;
            } else if (what == 2) {
                char *at = mremap(slot->at, slot->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
                CHECK(at != MAP_FAILED);
                for (size_t i = slot->pages; i < pages; i++) { CHECK(at[i * PAGE] == 0); at[i * PAGE] = slot->mark; }
                *slot = (struct slot){ at, pages, slot->mark };
            }
        }
    }
    return 0;
}
static uint64_t mapping(unsigned rounds, int threads) {
    pthread_t t[8];
    struct mapper m[8];
    uint64_t sum = 0;
    for (int i = 0; i < threads; i++) {
        m[i] = (struct mapper){ .state = i + 1, .sum = 0, .rounds = rounds };
        CHECK(pthread_create(&t[i], 0, maps, &m[i]) == 0);
    }
    for (int i = 0; i < threads; i++) { CHECK(pthread_join(t[i], 0) == 0); sum = sum * 131 + m[i].sum; }
    return sum;
}

static uint64_t hot(unsigned rounds) {
    size_t bytes = 4096 * PAGE;
    char *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    uint64_t state = 1, sum = 0;
    for (unsigned round = 0; round < rounds || !is_over(); round++) {
        for (int i = 0; i < 100000; i++) {
            uint64_t at = draw(&state) % bytes;
            p[at] += (char)i;
            if (round < rounds) sum = sum * 31 + (unsigned char)p[at];
        }
    }
    return sum;
}

/* Children in all ways that there are. */
static uint64_t children(unsigned rounds) {
    uint64_t sum = 0;
    for (unsigned round = 0; round < rounds || !is_over(); round++) {
        int status = 0, code = round % 50;
        char word[16];
        pid_t pid;
        snprintf(word, sizeof word, "%d", code);
        switch (round % 3) {
        case 0:
            pid = fork();
            CHECK(pid >= 0);
            if (!pid) { char *p = mmap(0, 9 * PAGE, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); p[5] = 1; munmap(p, 9 * PAGE); _exit(code); }
            break;
        case 1:
            pid = fork();
            CHECK(pid >= 0);
            if (!pid) { execl(me, me, "code", word, (char *)0); _exit(99); }
            break;
        default: {
            char *words[] = { (char *)me, "code", word, 0 };
            CHECK(posix_spawn(&pid, me, 0, 0, words, environ) == 0);
        } }
        CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == code);
        if (round < rounds) sum = sum * 31 + code;
    }
    return sum;
}

/* Calls that wait, which a stop of ours must not end, with or without a thousand signals a second. Those with a
   limit that the kernel ends at any stop, as it does at SIGCONT, are not among them. */
static volatile sig_atomic_t handled;
static void on_signal(int signal) { (void)signal; handled++; }
static timer_t timer_of(int signal) {
    timer_t timer;
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = signal };
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    return timer;
}
static void set(timer_t timer, long first, long every) {
    struct itimerspec when = { { 0, every }, { 0, first } };
    CHECK(timer_settime(timer, 0, &when, 0) == 0);
}
static uint64_t signals(unsigned rounds, int stormy) {
    struct sigaction act = { .sa_handler = on_signal };
    CHECK(sigaction(SIGUSR1, &act, 0) == 0);
    int ep = epoll_create1(0), clock = timerfd_create(CLOCK_MONOTONIC, 0), pair[2];
    struct epoll_event want = { .events = EPOLLIN }, got;
    struct itimerspec soon = { { 0, 0 }, { 0, 3000000 } };
    CHECK(ep >= 0 && clock >= 0 && epoll_ctl(ep, EPOLL_CTL_ADD, clock, &want) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    sigset_t other, before, after;
    sigemptyset(&other);
    sigaddset(&other, SIGUSR2);
    CHECK(sigprocmask(SIG_BLOCK, &other, 0) == 0 && sigprocmask(SIG_BLOCK, 0, &before) == 0);
    timer_t storm = timer_of(SIGUSR1), once = timer_of(SIGUSR2);
    uint64_t sum = 0;
    if (stormy) set(storm, 1000000, 1000000);
    for (unsigned round = 0; round < rounds || !is_over(); round++) {
        struct timespec nap = { 0, 3000000 }, a, b;
        uint64_t ticks;
        int was = handled, ended = 0;
        switch (round % 6) {
        case 0:
            CHECK(timerfd_settime(clock, 0, &soon, 0) == 0);
            ended = epoll_wait(ep, &got, 1, -1);
            if (ended == 1) { CHECK(read(clock, &ticks, 8) == 8 && ticks == 1); ended = 0; }
            break;
        case 1: ended = poll(&(struct pollfd){ pair[0], POLLIN, 0 }, 1, 4); break;
        case 2:
            CHECK(timerfd_settime(clock, 0, &soon, 0) == 0);
            ended = read(clock, &ticks, 8);
            if (ended == 8) ended = 0;
            break;
        case 3:
            set(once, 3000000, 0);
            ended = sigwaitinfo(&other, 0);
            while (ended < 0 && errno == EINTR && handled != was) { was = handled; ended = sigwaitinfo(&other, 0); }
            if (ended == SIGUSR2) ended = 0;
            break;
        case 4:
            CHECK(clock_gettime(CLOCK_MONOTONIC, &a) == 0);
            ended = nanosleep(&nap, 0);
            CHECK(clock_gettime(CLOCK_MONOTONIC, &b) == 0);
            if (!ended) CHECK((b.tv_sec - a.tv_sec) * 1000000000L + b.tv_nsec - a.tv_nsec >= 3000000);
            break;
        default: ended = ppoll(&(struct pollfd){ pair[0], POLLIN, 0 }, 1, &nap, &other); break;
        }
        /* A call ends early for a signal alone. */
        if (ended < 0) CHECK(errno == EINTR && handled != was);
        else CHECK(ended == 0);
        CHECK(sigprocmask(SIG_BLOCK, 0, &after) == 0 && memcmp(&before, &after, 8) == 0);
        char *p = mmap(0, 3 * PAGE, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(p != MAP_FAILED && p[PAGE] == 0);
        p[PAGE] = 1;
        CHECK(munmap(p, 3 * PAGE) == 0);
        if (round < rounds) sum = sum * 31 + round % 6;
    }
    set(storm, 0, 0);
    CHECK(!stormy || handled > 0);
    return sum;
}

/* Stopped and continued all the time by a child while it maps: it continues after each SIGCONT. */
static uint64_t stops(unsigned rounds) {
    steps = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(steps != MAP_FAILED);
    pid_t parent = getpid(), pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
        while (!is_over()) {
            if (getppid() != parent || kill(parent, SIGSTOP) != 0) _exit(0);
            usleep(1500);
            unsigned long was = atomic_load(steps);
            if (kill(parent, SIGCONT) != 0) _exit(0);
            do {
                if (getppid() != parent) _exit(0);
                usleep(3000);
            } while (atomic_load(steps) == was);
        }
        _exit(0);
    }
    uint64_t sum = mapping(rounds, 2);
    CHECK(waitpid(pid, 0, 0) == pid);
    return sum;
}

/* Restartable sequences: each adds one to its processor's count. An abort that is forgotten loses some. */
static struct { long count; char room[120]; } counts[1024];
static atomic_ulong added;
static unsigned least;
static void add_one(struct rseq *area) {
    for (;;) {
        int cpu = *(volatile int *)&area->cpu_id_start;
        __asm__ volatile goto(
            ".pushsection .data.rseq_here, \"aw\"\n"
            ".balign 32\n"
            "3: .long 0, 0\n .quad 1f, 2f - 1f, 4f\n"
            ".popsection\n"
            "leaq 3b(%%rip), %%rax\n"
            "movq %%rax, 8(%[area])\n"
            "1: cmpl %[cpu], 4(%[area])\n"
            "jnz 4f\n"
            "movq (%[count]), %%rax\n"
            /* Long enough to be met in. */
            "movl $200, %%ecx\n"
            "5: decl %%ecx\n"
            "jnz 5b\n"
            "addq $1, %%rax\n"
            "movq %%rax, (%[count])\n"
            "2:\n"
            ".pushsection .text.rseq_here, \"ax\"\n"
            ".byte 0x0f, 0xb9, 0x3d\n .long 0x53053053\n"
            "4: jmp %l[aborted]\n"
            ".popsection\n"
            : : [area] "r"(area), [cpu] "r"(cpu), [count] "r"(&counts[cpu].count)
            : "rax", "rcx", "memory", "cc" : aborted);
        atomic_fetch_add_explicit(&added, 1, memory_order_relaxed);
        return;
    aborted:;
    }
}
static void *adds(void *unused) {
    (void)unused;
    struct rseq *area = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
    for (unsigned round = 0; round < least || !is_over(); round++)
        for (int i = 0; i < 1000; i++) add_one(area);
    return 0;
}
static uint64_t sequences(unsigned rounds) {
    if (__rseq_size == 0) return 0;
    pthread_t t[4];
    least = rounds;
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&t[i], 0, adds, 0) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(t[i], 0) == 0);
    unsigned long all = 0;
    for (int i = 0; i < 1024; i++) all += counts[i].count;
    CHECK(all == added);
    return rounds;
}

/* Becomes another program again and again, from another thread each time. */
static char next_word[16];
static void *becomes(void *unused) {
    (void)unused;
    execl(me, me, "execs", folder, next_word, (char *)0);
    _exit(9);
}
static uint64_t execs(unsigned rounds) {
    if (rounds == 0 && is_over()) return 7;
    pthread_t t;
    snprintf(next_word, sizeof next_word, "%u", rounds ? rounds - 1 : 0);
    CHECK(pthread_create(&t, 0, becomes, 0) == 0);
    for (;;) pause();
}

int main(int count, char **words) {
    CHECK(count >= 3);
    const char *what = words[1];
    me = words[0];
    if (!strcmp(what, "code")) return atoi(words[2]);
    folder = words[2];
    if (!strcmp(what, "hot")) say(hot(20));
    if (!strcmp(what, "maps")) say(mapping(100, 1));
    if (!strcmp(what, "threads")) say(mapping(50, 4));
    if (!strcmp(what, "children")) say(children(90));
    if (!strcmp(what, "waits")) say(signals(60, 0));
    if (!strcmp(what, "storm")) say(signals(60, 1));
    if (!strcmp(what, "stops")) say(stops(50));
    if (!strcmp(what, "sequences")) say(sequences(20));
    if (!strcmp(what, "execs")) say(execs(count > 3 ? atoi(words[3]) : 20));
    return 8;
}
