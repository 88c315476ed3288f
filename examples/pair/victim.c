/* A program with a working set of 64 KiB that hands over to another one between two jobs, and says how much of the set it lost.
 *
 * Knows nothing of colors. Commands on standard input: a number of jobs. After each command one line per job, `f` or `s` (what the other
 * program was asked to do: flood or spin), ticks of the walk, lines lost; then `end`.
 *
 * Lines lost are counted, where the processor has a counter that this program may use, or estimated from the time of a dependent walk
 * over the set: page by page, between the time of a walk just after another one (all there) and after a walk over memory that fills the
 * cache several times (all gone). */

#define _GNU_SOURCE
#include <cpuid.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <x86intrin.h>

enum { PAGE = 4096, LINE = 64, PAGES = 16, PAGE_LINES = PAGE / LINE, LINES = PAGES * PAGE_LINES };
enum { ELSEWHERE = 2 << 20, CALIBRATIONS = 31, JOBS_MAX = 1 << 16 };

struct line {
    struct line *next;
    char rest[LINE - sizeof(struct line *)];
};

static struct line *set, *first[PAGES];
static char *elsewhere;
static int order[PAGES];
static int counter = -1;
static uint64_t random_state;

static unsigned random_below(unsigned limit)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(random_state >> 33) % limit;
}

static void shuffle(int *list, int length)
{
    for (int i = 0; i < length; i++)
        list[i] = i;
    for (int i = length - 1; i > 0; i--) {
        int j = (int)random_below((unsigned)i + 1), kept = list[i];
        list[i] = list[j];
        list[j] = kept;
    }
}

/* Each page gets a chain through all its lines in a random order of its own. */
static void write_chains(void)
{
    int lines[PAGE_LINES];
    for (int page = 0; page < PAGES; page++) {
        struct line *base = set + page * PAGE_LINES;
        shuffle(lines, PAGE_LINES);
        for (int i = 0; i < PAGE_LINES; i++)
            base[lines[i]].next = base + lines[(i + 1) % PAGE_LINES];
        first[page] = base + lines[0];
    }
    shuffle(order, PAGES);
}

/* Walks the whole set; ticks of each page. */
static void walk(uint64_t ticks[PAGES])
{
    for (int i = 0; i < PAGES; i++) {
        struct line *at = first[order[i]];
        unsigned cpu;
        uint64_t begin = __rdtscp(&cpu);
        _mm_lfence();
        for (int step = 0; step < PAGE_LINES; step++)
            at = *(struct line *volatile *)&at->next;
        ticks[order[i]] = __rdtscp(&cpu) - begin;
        _mm_lfence();
        if (at != first[order[i]])
            abort();
    }
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Per page the lower quartile of walks with everything there (`gone` 0) or nothing: noise only adds to the time. */
static void calibrate(int gone, double ticks[PAGES])
{
    static uint64_t walks[CALIBRATIONS][PAGES];
    for (int i = 0; i < CALIBRATIONS; i++) {
        for (int at = 0; gone && at < 2 * ELSEWHERE; at += LINE)
            ((volatile char *)elsewhere)[at % ELSEWHERE]++;
        walk(walks[i]);
    }
    for (int page = 0; page < PAGES; page++) {
        uint64_t of_page[CALIBRATIONS];
        for (int i = 0; i < CALIBRATIONS; i++)
            of_page[i] = walks[i][page];
        qsort(of_page, CALIBRATIONS, sizeof *of_page, by_value);
        ticks[page] = (double)of_page[CALIBRATIONS / 4];
    }
}

/* A counter of demand misses of the second level, in user mode; -1 without. */
static int open_counter(void)
{
    unsigned eax, name[3];
    if (!__get_cpuid(0, &eax, &name[0], &name[2], &name[1]))
        return -1;
    struct perf_event_attr event;
    memset(&event, 0, sizeof event);
    event.type = PERF_TYPE_RAW;
    event.size = sizeof event;
    event.exclude_kernel = 1;
    if (memcmp(name, "AuthenticAMD", sizeof name) == 0)
        event.config = 0x0864; /* L2 data misses, Zen */
    else if (memcmp(name, "GenuineIntel", sizeof name) == 0)
        event.config = 0x3f24; /* L2_RQSTS.MISS, Skylake and later */
    else
        return -1;
    int fd = (int)syscall(SYS_perf_event_open, &event, 0, -1, -1, 0);
    uint64_t warm[PAGES], before, after;
    for (int i = 0; i < 2 * ELSEWHERE; i += LINE)
        ((volatile char *)elsewhere)[i % ELSEWHERE]++;
    if (fd < 0 || read(fd, &before, sizeof before) != sizeof before)
        return -1;
    walk(warm);
    /* A counter that opens and counts nothing is none. */
    return read(fd, &after, sizeof after) == sizeof after && after > before ? fd : -1;
}

static uint64_t counted(void)
{
    uint64_t value;
    if (read(counter, &value, sizeof value) != sizeof value)
        abort();
    return value;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: victim FIFO_TO FIFO_FROM SEED\n");
        return 1;
    }
    random_state = strtoull(argv[3], NULL, 10);
    char *memory = malloc((PAGES + 1) * PAGE);
    elsewhere = malloc(ELSEWHERE);
    if (memory == NULL || elsewhere == NULL) {
        perror("malloc");
        return 1;
    }
    set = (struct line *)(((uintptr_t)memory + PAGE - 1) / PAGE * PAGE);
    memset(elsewhere, 1, ELSEWHERE);
    write_chains();
    counter = open_counter();
    static struct {
        char kind;
        uint64_t ticks;
        double lost;
    } jobs[JOBS_MAX];
    memset(jobs, 0, sizeof jobs);
    int to = open(argv[1], O_WRONLY), from = open(argv[2], O_RDONLY);
    if (to < 0 || from < 0) {
        perror("fifo");
        return 1;
    }
    printf("ready %d by %s\n", (int)getpid(), counter < 0 ? "time" : "counter");
    fflush(stdout);

    int count;
    while (scanf("%d", &count) == 1) {
        if (count < 1 || count > JOBS_MAX)
            return 1;
        double there[PAGES], gone[PAGES];
        calibrate(0, there);
        calibrate(1, gone);
        for (int job = 0; job < count; job++) {
            uint64_t ticks[PAGES], before = 0;
            char kind = random_below(2) ? 'f' : 's', answer;
            walk(ticks);
            walk(ticks);
            if (write(to, &kind, 1) != 1 || read(from, &answer, 1) != 1)
                return 1;
            if (counter >= 0)
                before = counted();
            walk(ticks);
            double lost = counter < 0 ? 0 : (double)(counted() - before);
            uint64_t sum = 0;
            for (int page = 0; page < PAGES; page++) {
                /* A page whose two times do not lie apart was disturbed: it counts as gone, which makes a noisy block of this one. */
                double apart = gone[page] - there[page], share = 1;
                if (apart > there[page] / 5)
                    share = ((double)ticks[page] - there[page]) / apart;
                if (counter < 0)
                    lost += PAGE_LINES * (share < 0 ? 0 : share > 1 ? 1 : share);
                sum += ticks[page];
            }
            jobs[job].kind = kind;
            jobs[job].ticks = sum;
            jobs[job].lost = lost;
        }
        double ticks_there = 0, ticks_gone = 0;
        for (int page = 0; page < PAGES; page++) {
            ticks_there += there[page];
            ticks_gone += gone[page];
        }
        for (int job = 0; job < count; job++)
            printf("%c %llu %.0f\n", jobs[job].kind, (unsigned long long)jobs[job].ticks, jobs[job].lost);
        printf("end %.0f %.0f\n", ticks_there, ticks_gone);
        fflush(stdout);
    }
    return 0;
}
