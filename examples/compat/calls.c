/* Calls a function, on which a uprobe is set, until the file named as first argument exists; prints how often and checks what it returned. */

#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { BURST = 100 };

__attribute__((noinline)) uint64_t probed(uint64_t value)
{
    __asm__ volatile("" : "+r"(value));
    return value * 6364136223846793005 + 1442695040888963407;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    uint64_t calls = 0, wrong = 0;
    const struct timespec pause = {.tv_nsec = 2000000};
    do {
        for (int i = 0; i < BURST; i++, calls++)
            wrong += probed(calls) != calls * 6364136223846793005 + 1442695040888963407;
        nanosleep(&pause, NULL);
    } while (access(argv[1], F_OK) != 0);
    printf("%llu wrong values\n%llu calls\n", (unsigned long long)wrong, (unsigned long long)calls);
    return wrong != 0;
}
