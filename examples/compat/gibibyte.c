/* Keeps 1 GiB of memory, and checks and rewrites its pages in random order until the file named as first argument exists. */

#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGES = 1 << 18, PAGE = 4096, WORDS = PAGE / 8, BETWEEN_LOOKS = 4096 };

/* How often each page was rewritten. */
static uint8_t generations[PAGES];

/* What word `index` of page `page` holds. */
static uint64_t word(uint64_t page, uint64_t index, uint64_t generation)
{
    uint64_t mixed = (page * WORDS + index + 1) * 0x9e3779b97f4a7c15 + generation * 0xbf58476d1ce4e5b9;
    return mixed ^ (mixed >> 29);
}

static uint64_t random_number(void)
{
    static uint64_t state = 88172645463325252;
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    uint64_t *memory = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    for (uint64_t page = 0; page < PAGES; page++)
        for (uint64_t i = 0; i < WORDS; i++)
            memory[page * WORDS + i] = word(page, i, 0);
    uint64_t wrong = 0, looks = 0;
    do {
        for (int look = 0; look < BETWEEN_LOOKS; look++, looks++) {
            uint64_t page = random_number() % PAGES;
            uint64_t generation = generations[page]++;
            for (uint64_t i = 0; i < WORDS; i++) {
                wrong += memory[page * WORDS + i] != word(page, i, generation);
                memory[page * WORDS + i] = word(page, i, (uint8_t)(generation + 1));
            }
        }
    } while (access(argv[1], F_OK) != 0);
    for (uint64_t page = 0; page < PAGES; page++)
        for (uint64_t i = 0; i < WORDS; i++)
            wrong += memory[page * WORDS + i] != word(page, i, generations[page]);
    printf("%d pages, %llu wrong words\n", PAGES, (unsigned long long)wrong);
    fprintf(stderr, "looks %llu\n", (unsigned long long)looks);
    return wrong != 0;
}
