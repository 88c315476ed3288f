/* A program for the tests of `isochrome run`: what it does wrong is its first argument, how long a job takes in us its second. */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* Computes until it has had the CPU for so long: what others take away does not count. The kernel reports each reading of this clock to who
   watches the scheduler, so it is read about once a microsecond. */
static void work(uint64_t ns)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    uint64_t end = t.tv_sec * 1000000000ull + t.tv_nsec + ns;
    do {
        for (volatile int turn = 0; turn < 500; turn++)
            ;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    } while (t.tv_sec * 1000000000ull + t.tv_nsec < end);
}

enum { PAGE = 4096 };

/* Memory in which every page faults when it is written to for the first time since it was given back. */
static char *faulting(size_t pages)
{
    char *memory = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || madvise(memory, pages * PAGE, MADV_NOHUGEPAGE))
        exit(1);
    return memory;
}

static void fault(char *memory, size_t pages)
{
    for (size_t page = 0; page < pages; page++)
        *(volatile char *)(memory + page * PAGE) = 1;
}

/* Memory whose pages all have color 0 of 16, where the lowest bits of the frame number are the color. */
enum { SAME = 32, CANDIDATES = 4096, CHUNKS_MAX = 64, COLORS = 16 };
static char *same[SAME];

static int color(int pagemap, char *page)
{
    uint64_t entry;
    if (pread(pagemap, &entry, sizeof entry, (uintptr_t)page / PAGE * sizeof entry) != sizeof entry)
        exit(1);
    int is_present = entry >> 63;
    if (!is_present) {
        fprintf(stderr, "a page is not in memory\n");
        exit(1);
    }
    return entry % COLORS;
}

static void take_same(void)
{
    char *chunks[CHUNKS_MAX];
    int pagemap = open("/proc/self/pagemap", O_RDONLY), count = 0, taken = 0, kept = 0;
    /* Another program may hold most free pages of this color. Pages are given back only at the end, because the kernel would hand them out
       again at once. */
    while (taken < SAME) {
        if (count == CHUNKS_MAX) {
            fprintf(stderr, "of %d pages %d have color 0\n", CHUNKS_MAX * CANDIDATES, taken);
            exit(1);
        }
        char *chunk = chunks[count++] = faulting(CANDIDATES);
        fault(chunk, CANDIDATES);
        for (size_t page = 0; page < CANDIDATES && taken < SAME; page++)
            if (color(pagemap, chunk + page * PAGE) == 0)
                same[taken++] = chunk + page * PAGE;
    }
    close(pagemap);
    for (int chunk = 0; chunk < count; chunk++)
        for (char *page = chunks[chunk]; page < chunks[chunk] + CANDIDATES * PAGE; page += PAGE)
            if (kept < SAME && page == same[kept])
                kept++;
            else
                munmap(page, PAGE);
}

/* Appends to a file how many of these pages have the most frequent color now. */
static void tell_most(const char *path)
{
    int pagemap = open("/proc/self/pagemap", O_RDONLY), of_color[COLORS] = {0}, most = 0;
    for (int page = 0; page < SAME; page++) {
        int pages = ++of_color[color(pagemap, same[page])];
        most = pages > most ? pages : most;
    }
    close(pagemap);
    FILE *out = fopen(path, "a");
    fprintf(out, "%d\n", most);
    fclose(out);
}

/* Reads a line; 0 at the end of the input. */
static int line(void)
{
    char c;
    do
        if (read(0, &c, 1) != 1)
            return 0;
    while (c != '\n');
    return 1;
}

static void say(const char *text)
{
    if (write(1, text, strlen(text)) < 0)
        exit(1);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "line";
    uint64_t ns = argc > 2 ? strtoull(argv[2], 0, 10) * 1000 : 20000;
    uint64_t period = argc > 3 ? strtoull(argv[3], 0, 10) * 1000 : 1000000;
    int skips = !strcmp(mode, "skips"), doubles = !strcmp(mode, "doubles");
    if (skips || !strcmp(mode, "periodic")) {
        /* What it says of its own jobs, in a file at the end: wake-up and end, by its own clock. */
        uint64_t next = now() + period, log_size = 200000, jobs = 0, releases = 0;
        uint64_t *log = calloc(2 * log_size, sizeof *log);
        memset(log, 1, 2 * log_size * sizeof *log);
        sigset_t ends;
        sigemptyset(&ends);
        sigaddset(&ends, SIGTERM);
        sigprocmask(SIG_BLOCK, &ends, 0);
        for (;;) {
            struct timespec t = {next / 1000000000, next % 1000000000}, none = {0, 0};
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0);
            uint64_t begin = now();
            work(ns);
            if (sigtimedwait(&ends, 0, &none) == SIGTERM)
                break;
            if (jobs < log_size) {
                log[2 * jobs] = begin;
                log[2 * jobs++ + 1] = now();
            }
            /* Every thousandth release does not come. */
            next += skips && ++releases % 1000 == 0 ? 2 * period : period;
        }
        FILE *out = argc > 4 ? fopen(argv[4], "w") : 0;
        for (uint64_t job = 0; out && job < jobs; job++)
            fprintf(out, "%llu %llu\n", (unsigned long long)log[2 * job], (unsigned long long)log[2 * job + 1]);
        return 0;
    }
    if (!strcmp(mode, "exits-early"))
        return 3;
    size_t pages = !strcmp(mode, "faults") && argc > 3 ? strtoull(argv[3], 0, 10) : 0;
    char *memory = pages ? faulting(pages) : 0;
    int takes_same = !strcmp(mode, "same-color");
    if (takes_same)
        take_same();
    say("ready\n");
    for (int job = 0; line(); job++) {
        int due = job == 50;
        if (pages) {
            /* Half of them before it computes and half afterwards, on either side of where it is pre-empted. */
            madvise(memory, pages * PAGE, MADV_DONTNEED);
            fault(memory, pages / 2);
        }
        /* Every thousandth job takes twice as long. */
        work(doubles && job % 1000 == 999 ? 2 * ns : ns);
        if (pages)
            fault(memory + pages / 2 * PAGE, pages - pages / 2);
        if (takes_same && job == 10)
            tell_most(argv[3]);
        if (due && !strcmp(mode, "crashes"))
            abort();
        if (due && !strcmp(mode, "ends"))
            return 0;
        if (due && !strcmp(mode, "forks") && !fork())
            for (;;)
                pause();
        if (due && !strcmp(mode, "spins"))
            for (;;)
                ;
        if (due && !strcmp(mode, "hangs"))
            sleep(100);
        if (due && !strcmp(mode, "stops"))
            raise(SIGSTOP);
        if (due && !strcmp(mode, "garbage"))
            say("one\ntwo\nthree\n");
        if (due && !strcmp(mode, "grows"))
            memset(malloc(64 << 20), 1, 64 << 20);
        if (due && !strcmp(mode, "late"))
            work(5000000);
        say("done\n");
    }
    return 0;
}
