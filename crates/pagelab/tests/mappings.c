/* Lays mappings over each other, moves and cuts them, and visits their pages: so and so many writes in a row.
   Each stretch is longer than the TLBs that the test asks for, so a visit is one miss a page. Prints where the
   mappings are that the test asks for. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define MIB (1ul << 20)
#define PAGE 4096ul
#define CHECK(what) do { if (!(what)) { perror(#what); exit(9); } } while (0)

static void visit(char *p, size_t bytes, int times) {
    for (size_t at = 0; at < bytes; at += PAGE)
        for (int n = 0; n < times; n++) ((volatile char *)p)[at] = 1;
}
static char *map(char *at, size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED : 0);
    char *p = mmap(at, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(p != MAP_FAILED && (!at || p == at));
    return p;
}

int main(int count, char **words) {
    CHECK(count == 2);
    /* Addresses that nothing else is put at: a mapping of its own, of which parts are cut. */
    char *place = map(0, 64 * MIB);
    CHECK(munmap(place + MIB, 63 * MIB) == 0);
    visit(place, MIB, 1);

    /* Over its own middle: stays the same. */
    char *own = map(place + 4 * MIB, 9 * MIB);
    visit(own, 9 * MIB, 2);
    map(own + 2 * MIB, 2 * MIB);
    visit(own, 9 * MIB, 3);

    /* A file over a part, from its second page on. */
    int file = open(words[1], O_RDONLY);
    CHECK(file >= 0);
    char *over = mmap(own + 5 * MIB, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, PAGE);
    CHECK(over == own + 5 * MIB);
    visit(over, 2 * MIB, 5);

    /* Over the end of one and the begin of the next: a third one. */
    char *next = map(own + 9 * MIB, 7 * MIB);
    visit(next, 7 * MIB, 1);
    char *both = map(next - MIB, 3 * MIB);
    visit(both, 3 * MIB, 4);
    visit(own, 5 * MIB, 1);
    visit(next + 2 * MIB, 5 * MIB, 6);

    /* Grown where something else is in the way, so that it moves; then it shrinks. */
    char *grown = map(place + 24 * MIB, 5 * MIB);
    map(grown + 5 * MIB, PAGE);
    visit(grown, 5 * MIB, 2);
    char *moved = mremap(grown, 5 * MIB, 10 * MIB, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED && moved != grown);
    visit(moved, 10 * MIB, 3);
    CHECK(mremap(moved, 10 * MIB, 6 * MIB, 0) == moved);
    visit(moved, 6 * MIB, 1);
    /* What comes to its old place is another one. */
    visit(map(grown, 5 * MIB), 5 * MIB, 7);

    /* A hole, and another one in it. */
    char *holed = map(place + 40 * MIB, 11 * MIB);
    visit(holed, 11 * MIB, 1);
    CHECK(munmap(holed + 4 * MIB, 4 * MIB) == 0);
    visit(holed + 8 * MIB, 3 * MIB, 2);
    char *filled = map(holed + 5 * MIB, 2 * MIB);
    visit(filled, 2 * MIB, 8);

    printf("%p %p %p %p\n", (void *)own, (void *)moved, (void *)holed, (void *)filled);
    return 0;
}
