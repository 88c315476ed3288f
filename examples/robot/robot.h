/* What every program here has around its job: it runs by lines, or by a timer of its own.
 *
 * Without an argument a line on standard input releases a job, and a line on standard output completes it; a first line says that the
 * program is ready. With an argument it is the period in microseconds, and the program wakes itself. */
#ifndef ROBOT_H
#define ROBOT_H

#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* A number from a fixed sequence: every run computes the same. */
static inline uint32_t next_number(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* Memory of whole pages, touched. */
static inline void *memory(size_t bytes) {
    void *found = NULL;
    if (posix_memalign(&found, 4096, bytes) != 0) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    memset(found, 0, bytes);
    return found;
}

/* Every number from 0 to count - 1 once, in random order. */
static inline void shuffled(uint32_t *order, uint32_t count, uint32_t *state) {
    for (uint32_t i = 0; i < count; i++) order[i] = i;
    for (uint32_t i = count - 1; i > 0; i--) {
        uint32_t j = next_number(state) % (i + 1), swapped = order[i];
        order[i] = order[j];
        order[j] = swapped;
    }
}

static inline int run(int argc, char **argv, void (*job)(void)) {
    (void)mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT);
    if (argc > 1) {
        long period_ns = 1000 * atol(argv[1]);
        if (period_ns <= 0) {
            fprintf(stderr, "usage: %s [PERIOD IN MICROSECONDS]\n", argv[0]);
            return 1;
        }
        struct timespec next;
        clock_gettime(CLOCK_MONOTONIC, &next);
        for (;;) {
            next.tv_nsec += period_ns % 1000000000;
            next.tv_sec += period_ns / 1000000000 + next.tv_nsec / 1000000000;
            next.tv_nsec %= 1000000000;
            while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL) == EINTR) {}
            job();
        }
    }
    job();
    if (write(1, "ready\n", 6) != 6) return 1;
    char line[256];
    ssize_t length;
    while ((length = read(0, line, sizeof line)) > 0) {
        for (ssize_t i = 0; i < length; i++) {
            if (line[i] != '\n') continue;
            job();
            if (write(1, "done\n", 5) != 5) return 1;
        }
    }
    return 0;
}

#endif
