/* A program that is handed the CPU and writes over all its memory, or spins for as long as that took the last time, and hands back.
 *
 * It knows nothing of colors. Its memory should be several times the second level. It writes pages in a random order, since some caches
 * keep their contents when memory is written in order: on AMD Zen 5, four times the second level then evicted next to nothing. What it
 * wrote must be there the next time, else it ends with exit code 4. It ends when the other side closes the FIFO. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <x86intrin.h>

enum { LINE = 64, PAGE = 4096, HUGE = 2 << 20 };

static void shuffle(size_t *order, size_t count)
{
    static uint64_t state = 1;
    for (size_t i = count - 1; i > 0; i--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        size_t j = (size_t)(state >> 33) % (i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: writer KIBIBYTES FIFO_FROM FIFO_TO\n");
        return 1;
    }
    size_t bytes = strtoull(argv[1], NULL, 10) << 10, pages = bytes / PAGE;
    /* Huge pages have all colors; single frames may be what programs on some of the colors have left over. */
    unsigned char *memory = aligned_alloc(HUGE, (bytes + HUGE - 1) / HUGE * HUGE), round = 1, kind;
    size_t *order = malloc(pages * sizeof *order);
    if (pages == 0 || memory == NULL || order == NULL) {
        perror("writer");
        return 1;
    }
    madvise(memory, bytes, MADV_HUGEPAGE);
    /* Not zeros: compilers make calloc of them, which leaves the memory untouched. */
    memset(memory, round, bytes);
    for (size_t i = 0; i < pages; i++)
        order[i] = i;
    printf("ready %d %#lx\n", (int)getpid(), (unsigned long)memory);
    fflush(stdout);
    int from = open(argv[2], O_RDONLY), to = open(argv[3], O_WRONLY);
    if (from < 0 || to < 0) {
        perror("writer: fifo");
        return 1;
    }
    uint64_t write_ticks = 200000;
    while (read(from, &kind, 1) == 1) {
        shuffle(order, pages);
        uint64_t begin = __rdtsc();
        if (kind == 'f') {
            int wrong = 0;
            for (size_t i = 0; i < pages; i++) {
                unsigned char *page = memory + order[i] * PAGE;
                for (size_t at = 0; at < PAGE; at += LINE) {
                    wrong |= page[at] != round;
                    page[at] = (unsigned char)(round + 1);
                }
            }
            round++;
            /* Lines that are used once may be the first to go again, so they are used twice. */
            shuffle(order, pages);
            for (size_t i = 0; i < pages; i++)
                for (size_t at = 0; at < PAGE; at += LINE)
                    wrong |= memory[order[i] * PAGE + at] != round;
            if (wrong) {
                fprintf(stderr, "writer: wrong contents\n");
                return 4;
            }
            write_ticks = __rdtsc() - begin;
        } else {
            while (__rdtsc() - begin < write_ticks)
                _mm_pause();
        }
        if (write(to, &kind, 1) != 1)
            return 1;
    }
    return 0;
}
