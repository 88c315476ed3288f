/* Starts programs by vfork until the file named as first argument exists, and checks its own memory in between. */

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 2 << 20, CHECK = 16 };

/* Whether a program was started and ended well. */
__attribute__((noinline)) static int starts(void)
{
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(127);
    }
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    uint64_t *memory = malloc(WORDS * sizeof *memory);
    if (memory == NULL)
        return 1;
    for (uint64_t i = 0; i < WORDS; i++)
        memory[i] = (i + 1) * 0x9e3779b97f4a7c15;
    uint64_t wrong = 0, failed = 0, children = 0;
    do {
        for (int i = 0; i < CHECK; i++, children++)
            failed += !starts();
        for (uint64_t i = 0; i < WORDS; i++)
            wrong += memory[i] != (i + 1) * 0x9e3779b97f4a7c15;
    } while (access(argv[1], F_OK) != 0);
    printf("%llu children failed, %llu wrong words\n", (unsigned long long)failed, (unsigned long long)wrong);
    fprintf(stderr, "rounds %llu\n", (unsigned long long)children);
    return failed != 0 || wrong != 0;
}
