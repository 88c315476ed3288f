/* A program that is handed the CPU and dirties 1 MiB, or spins for as long as that took the last time, and hands back. Knows nothing of
 * colors. What it wrote must be there the next time: else it ends with exit code 4. */

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <x86intrin.h>

enum { BYTES = 1 << 20, LINE = 64 };

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: partner FIFO_FROM FIFO_TO\n");
        return 1;
    }
    unsigned char *memory = malloc(BYTES), round = 1, kind;
    if (memory == NULL) {
        perror("malloc");
        return 1;
    }
    /* Not zeros: compilers make calloc of them, which leaves the memory untouched. */
    memset(memory, round, BYTES);
    int from = open(argv[1], O_RDONLY), to = open(argv[2], O_WRONLY);
    if (from < 0 || to < 0) {
        perror("fifo");
        return 1;
    }
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
    uint64_t flood_ticks = 200000;
    while (read(from, &kind, 1) == 1) {
        uint64_t begin = __rdtsc();
        if (kind == 'f') {
            int wrong = 0;
            for (size_t i = 0; i < BYTES; i += LINE) {
                wrong |= memory[i] != round;
                memory[i] = (unsigned char)(round + 1);
            }
            round++;
            if (wrong)
                return 4;
            flood_ticks = __rdtsc() - begin;
        } else {
            while (__rdtsc() - begin < flood_ticks)
                _mm_pause();
        }
        if (write(to, &kind, 1) != 1)
            return 1;
    }
    return 0;
}
