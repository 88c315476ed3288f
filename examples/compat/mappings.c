/* Keeps 60 000 mappings of a page each, and checks and rewrites their contents until the file named as first argument exists. */

#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAPPINGS = 60000, PAGE = 4096, WORDS = PAGE / 8 };

/* What word `index` of page `page` holds. Pages that can be written get a new `generation` in each round. */
static uint64_t word(uint64_t page, uint64_t index, uint64_t generation)
{
    uint64_t mixed = (page * WORDS + index + 1) * 0x9e3779b97f4a7c15 + generation * 0xbf58476d1ce4e5b9;
    return mixed ^ (mixed >> 29);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    uint64_t *memory = mmap(NULL, (size_t)MAPPINGS * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    /* A huge page would have to be split by every second mprotect. */
    madvise(memory, (size_t)MAPPINGS * PAGE, MADV_NOHUGEPAGE);
    for (uint64_t page = 0; page < MAPPINGS; page++)
        for (uint64_t i = 0; i < WORDS; i++)
            memory[page * WORDS + i] = word(page, i, 0);
    for (uint64_t page = 1; page < MAPPINGS; page += 2)
        if (mprotect(memory + page * WORDS, PAGE, PROT_READ) != 0) {
            perror("mprotect");
            return 1;
        }
    uint64_t wrong = 0, rounds = 0;
    do {
        for (uint64_t page = 0; page < MAPPINGS; page++) {
            uint64_t generation = page % 2 ? 0 : rounds;
            for (uint64_t i = 0; i < WORDS; i++)
                wrong += memory[page * WORDS + i] != word(page, i, generation);
            if (page % 2 == 0)
                for (uint64_t i = 0; i < WORDS; i++)
                    memory[page * WORDS + i] = word(page, i, rounds + 1);
        }
        rounds++;
    } while (access(argv[1], F_OK) != 0);
    printf("%d mappings, %llu wrong words\n", MAPPINGS, (unsigned long long)wrong);
    fprintf(stderr, "rounds %llu\n", (unsigned long long)rounds);
    return wrong != 0;
}
