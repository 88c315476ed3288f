/* A program with a working set of its own that verifies it all the time, and tells which of its pages another program evicts.
 *
 * It knows nothing of colors and shares no code with isochrome. It writes every line of its memory, reads it again and compares; a wrong
 * word ends it with exit code 4. Commands on standard input:
 *
 *     check PAGES SECONDS FIFO_TO FIFO_FROM   judge so many pages, chosen at random, within so many seconds, with the writer behind
 *                                             these FIFOs; prints one line of JSON
 *     end                                     verify everything a last time, print one line of JSON and end
 *
 * What a check asks of a page: is it evicted from the second-level cache while `writer.c`, on the same CPU, writes over its memory? The
 * paired control is the same handover to a writer that only spins for as long. If the writer is confined to all colors but those of this
 * program, then a page that is off color is evicted, and a page on color is kept as well as in the control.
 *
 * One turn: walk a batch of pages some times, hand over to the writer, walk the batch again and time it. Turns come in pairs, one of each
 * kind, in random order. A page is `kept` in a turn if fewer than half of its lines are lost, by the time of dependent walks over some. Batches are
 * small, so that they fit into few colors.
 *
 * The rule is a sequential Bayes factor. The cache loses lines by itself here and there, as often with a writer as without:
 *
 *     on color:   kept in the control with probability q, and with l*q when the writer writes; l is at least 0.7: what no program can move
 *                 (the kernel's lines, the writer's stack) evicts a little
 *     off color:  kept in the control with probability q, and with e*q when the writer writes; e is at most 0.3
 *
 * q, l and e are unknown and uniform in 0 to 1, 0.7 to 1 and 0 to 0.3: the likelihoods are integrated over them. The ratio of the two
 * integrals, or its inverse, is a martingale if the other answer is true. So the probability that it ever passes 1e4 in favor of the wrong
 * answer is at most 1e-4 (Ville's inequality), however often it is looked at. A page that is lost in the control too gives no evidence.
 *
 * A page that is not found on color is judged again in smaller batches, up to six times in all: others of its batch may have crowded it
 * out together with what no program can move. It is off color when two small batches say so. So a page off color passes with probability
 * 6e-4 at most. What is not decided in the end is `undecided` and counts for neither answer. Turns that took much longer than the quickest
 * of their kind were interrupted: their pair is discarded, whatever was lost in it.
 *
 * The rates hold for noise. A writer that is not confined as well as it should be evicts pages on color, too: a page off color in one
 * check and on color in the next, with another writer, is the writer's fault. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { HUGE = 2 << 20, PAGE = 4096, LINE = 64, PAGE_LINES = PAGE / LINE, WORDS = LINE / 8 };
/* The first line of a page is read before the clock: it pays for the translation of the address. Of the others only so many are walked,
 * since cores that see a page miss bring in the rest of it. */
enum { SEGMENTS = 2, SEGMENT_LINES = 8, SETTLING_WALKS = 3 };
enum { BATCH = 12, ROUNDS = 6, CALIBRATIONS = 9, HISTORY = 32, PAIRS_MAX = 100, SAMPLES_MAX = 1 << 16 };
/* Memory that empties the second level, as a multiple of it, and a first part of it that empties the first level only. Lines that were used
 * before stay longer than those that are read once. */
enum { ELSEWHERE_LEVELS = 4, ELSEWHERE_FIRST_LEVEL = 12 * PAGE };
/* Memory in single frames is that many times as large, so that among them are some of every color. */
enum { ELSEWHERE_TIMES = 8 };
enum { KEPT_GRID = 32, WRITER_GRID = 8 };

static const int batch_of_round[ROUNDS] = {BATCH, 4, 2, 2, 2, 2};
static const double ON_COLOR_KEPT = 0.7, OFF_COLOR_KEPT = 0.3, ERROR_RATE = 1e-4;

struct line {
    struct line *next;
    uint64_t words[WORDS - 1];
};

struct sample {
    size_t page;
    int control_kept, control_turns, write_kept, write_turns;
    double lost_control, lost_write;
    char verdict;       /* '+' on color, '-' off color, '?' undecided */
    int found_off_color; /* small batches that said so */
};

static struct line *memory;
static size_t pages;
static unsigned char *version;
static int next_in_cycle[PAGE_LINES];
static volatile char *elsewhere;
/* Pages of it behind those of the first level, in any order, and how many of them are read at a time. */
static size_t *elsewhere_order, elsewhere_pages, elsewhere_read;
static uint64_t random_state, wrong_words, pages_verified;
static int to = -1, from = -1;

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t random_below(uint64_t limit)
{
    random_state += 0x9e3779b97f4a7c15u;
    return mix(random_state) % limit;
}

/* Brings `count` of the numbers `order`, chosen at random, to its front, in random order. */
static void draw(size_t *order, size_t numbers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t j = i + random_below(numbers - i), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* One cycle through all lines of a page, in random order. */
static void make_chain(void)
{
    size_t order[PAGE_LINES];
    for (size_t i = 0; i < PAGE_LINES; i++)
        order[i] = i;
    draw(order, PAGE_LINES, PAGE_LINES);
    for (int i = 0; i < PAGE_LINES; i++)
        next_in_cycle[order[i]] = (int)order[(i + 1) % PAGE_LINES];
}

/* The line behind `line` in the cycle of `page`. Each page has another one, as a core learns which line follows which, and fetches ahead: the
 * cycle of make_chain with line x at (a x + b) mod PAGE_LINES, for an odd a. */
static int next_line(size_t page, int line)
{
    unsigned a = (unsigned)(mix(page) | 1), b = (unsigned)(mix(page) >> 32), inverse = a;
    /* Newton's iteration: of a, a bits are right at first 3, then 6. */
    inverse *= 2 - a * inverse;
    unsigned from = inverse * ((unsigned)line - b) % PAGE_LINES;
    return (int)((a * (unsigned)next_in_cycle[from] + b) % PAGE_LINES);
}

static uint64_t content(size_t page, int line, int word)
{
    return mix(page << 24 | (uint64_t)version[page] << 16 | (uint64_t)line << 8 | (uint64_t)word);
}

static void write_page(size_t page)
{
    struct line *base = memory + page * PAGE_LINES;
    version[page]++;
    for (int line = 0; line < PAGE_LINES; line++) {
        base[line].next = base + next_line(page, line);
        for (int word = 0; word < WORDS - 1; word++)
            base[line].words[word] = content(page, line, word);
    }
}

static void verify_page(size_t page)
{
    struct line *base = memory + page * PAGE_LINES;
    for (int line = 0; line < PAGE_LINES; line++) {
        wrong_words += base[line].next != base + next_line(page, line);
        for (int word = 0; word < WORDS - 1; word++)
            wrong_words += base[line].words[word] != content(page, line, word);
    }
    pages_verified++;
    if (wrong_words > 0) {
        printf("{\"wrong_words\":%" PRIu64 ",\"page\":%zu}\n", wrong_words, page);
        exit(4);
    }
}

static struct line *first_line(size_t page)
{
    return memory + page * PAGE_LINES;
}

static void touch_batch(const struct sample *batch, int count)
{
    for (int i = 0; i < count; i++) {
        struct line *at = first_line(batch[i].page);
        for (int step = 0; step < PAGE_LINES; step++)
            at = *(struct line *volatile *)&at->next;
        if (at != first_line(batch[i].page)) {
            printf("{\"wrong_words\":1,\"page\":%zu}\n", batch[i].page);
            exit(4);
        }
    }
}

/* Brings the batch into the second level and uses it there some times: the second level does not see what hits the first, and lines without
 * use are the first to go. In the end the first level is empty of them. */
static void settle_batch(const struct sample *batch, int count)
{
    for (int i = 0; i < SETTLING_WALKS; i++) {
        touch_batch(batch, count);
        for (int at = 0; at < ELSEWHERE_FIRST_LEVEL; at += LINE)
            (void)elsewhere[at];
    }
}

/* Ticks of each segment of each page. */
static void time_batch(const struct sample *batch, int count, uint64_t ticks[][SEGMENTS])
{
    unsigned cpu;
    for (int i = 0; i < count; i++) {
        /* From anywhere: a core learns walks that are always the same. */
        struct line *at = *(struct line *volatile *)&(first_line(batch[i].page) + random_below(PAGE_LINES))->next;
        for (int segment = 0; segment < SEGMENTS; segment++) {
            _mm_lfence();
            uint64_t begin = __rdtscp(&cpu);
            _mm_lfence();
            for (int step = 0; step < SEGMENT_LINES; step++)
                at = *(struct line *volatile *)&at->next;
            ticks[i][segment] = __rdtscp(&cpu) - begin;
        }
    }
}

static void swap(struct sample *a, struct sample *b)
{
    struct sample kept = *a;
    *a = *b;
    *b = kept;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Mean of the middle half: finer than a median where the clock steps in 10 ns. */
static double middle(double *values, int count)
{
    double sum = 0;
    int low = count / 4, high = count - count / 4;
    qsort(values, (size_t)count, sizeof *values, by_value);
    for (int i = low; i < high; i++)
        sum += values[i];
    return sum / (high - low);
}

/* Ticks of a segment after so many pages of other memory were read: in the second level after none, in no level after many. */
static double calibrate_once(const struct sample *batch, int count, size_t others)
{
    uint64_t ticks[BATCH][SEGMENTS];
    static double values[CALIBRATIONS * BATCH * SEGMENTS];
    int known = 0;
    for (int i = 0; i < CALIBRATIONS; i++) {
        settle_batch(batch, count);
        /* In an order that no cache takes for a stream, which it would not keep. */
        draw(elsewhere_order, elsewhere_pages, others);
        for (size_t page = 0; page < others; page++) {
            volatile char *at = elsewhere + ELSEWHERE_FIRST_LEVEL + elsewhere_order[page] * PAGE;
            for (int offset = 0; offset < PAGE; offset += LINE)
                (void)at[offset];
        }
        time_batch(batch, count, ticks);
        for (int j = 0; j < count * SEGMENTS; j++)
            values[known++] = (double)ticks[j / SEGMENTS][j % SEGMENTS];
    }
    return middle(values, known);
}

/* Both, as the lower quartiles of the last calibrations that told them apart; 0 if there is none yet. On a busy machine few do: it tries until
 * the time `until`. */
static int calibrate(const struct sample *batch, int count, double until, double *there, double *gone)
{
    static double all_there[HISTORY], all_gone[HISTORY];
    static int good;
    double sorted[HISTORY];
    for (int i = 0; i == 0 || (i < HISTORY && good < HISTORY / 4 && now() < until); i++) {
        *there = calibrate_once(batch, count, 0);
        *gone = calibrate_once(batch, count, elsewhere_read);
        if (*gone > 1.4 * *there) {
            all_there[good % HISTORY] = *there;
            all_gone[good % HISTORY] = *gone;
            good++;
        }
    }
    int known = good < HISTORY ? good : HISTORY;
    memcpy(sorted, all_there, sizeof sorted);
    qsort(sorted, (size_t)known, sizeof *sorted, by_value);
    *there = sorted[known / 4];
    memcpy(sorted, all_gone, sizeof sorted);
    qsort(sorted, (size_t)known, sizeof *sorted, by_value);
    *gone = sorted[known / 4];
    return good > 0 && *gone > 1.3 * *there;
}

/* Likelihood of what was seen of a page, but for a factor. With the writer writing it is kept with `low` to `high` times the probability of
 * the control, which is unknown. */
static double likelihood(const struct sample *sample, double low, double high)
{
    double sum = 0;
    for (int i = 0; i < KEPT_GRID; i++) {
        double kept = (i + 0.5) / KEPT_GRID, of_write = 0;
        for (int j = 0; j < WRITER_GRID; j++) {
            double p = kept * (low + (high - low) * (j + 0.5) / WRITER_GRID);
            of_write += pow(p, sample->write_kept) * pow(1 - p, sample->write_turns - sample->write_kept);
        }
        sum += of_write * pow(kept, sample->control_kept) * pow(1 - kept, sample->control_turns - sample->control_kept);
    }
    return sum;
}

/* Logarithm of the likelihood of "on color" over that of "off color". */
static double evidence(const struct sample *sample)
{
    return log(likelihood(sample, ON_COLOR_KEPT, 1)) - log(likelihood(sample, 0, OFF_COLOR_KEPT));
}

struct totals {
    int pairs, discarded, uncalibrated;
    double there_ticks, gone_ticks;
};

/* Hands over to the writer; seconds until it handed back. */
static double hand_over(char kind)
{
    char answer;
    double begin = now();
    if (write(to, &kind, 1) != 1 || read(from, &answer, 1) != 1 || answer != kind) {
        fprintf(stderr, "resident: the writer is gone\n");
        exit(1);
    }
    return now() - begin;
}

static void judge(struct sample *batch, int count, double until, struct totals *totals)
{
    double there, gone, quickest[2] = {INFINITY, INFINITY};
    for (int i = 0; i < count; i++)
        batch[i] = (struct sample){.page = batch[i].page, .verdict = '?', .found_off_color = batch[i].found_off_color};
    if (now() >= until || !calibrate(batch, count, until, &there, &gone)) {
        totals->uncalibrated++;
        return;
    }
    totals->there_ticks = there;
    totals->gone_ticks = gone;
    /* The first handovers bring the writer's memory and its time. */
    for (int i = 0; i < 4; i++)
        quickest[i % 2] = fmin(quickest[i % 2], hand_over("fs"[i % 2]));
    int open = count;
    for (int pair = 0; pair < PAIRS_MAX && open > 0 && now() < until; pair++) {
        uint64_t ticks[2][BATCH][SEGMENTS];
        double lost[2][BATCH], lost_control = 0;
        int interrupted = 0, write_first = (int)random_below(2);
        for (int turn = 0; turn < 2; turn++) {
            int kind = turn ^ write_first ^ 1; /* 0: the writer writes, 1: it spins */
            settle_batch(batch, count);
            double took = hand_over("fs"[kind]);
            time_batch(batch, count, ticks[kind]);
            interrupted |= took > 1.5 * quickest[kind] + 30e-6;
            quickest[kind] = fmin(quickest[kind], took);
        }
        totals->pairs++;
        if (interrupted) {
            totals->discarded++;
            continue;
        }
        for (int kind = 0; kind < 2; kind++) {
            for (int i = 0; i < count; i++) {
                lost[kind][i] = 0;
                for (int segment = 0; segment < SEGMENTS; segment++) {
                    double share = ((double)ticks[kind][i][segment] - there) / (gone - there);
                    lost[kind][i] += fmin(1, fmax(0, share)) / SEGMENTS;
                }
            }
        }
        for (int i = 0; i < count; i++) {
            struct sample *sample = batch + i;
            lost_control += lost[1][i] / count;
            if (sample->verdict != '?')
                continue;
            sample->write_turns++;
            sample->control_turns++;
            sample->write_kept += lost[0][i] < 0.5;
            sample->control_kept += lost[1][i] < 0.5;
            sample->lost_write += lost[0][i];
            sample->lost_control += lost[1][i];
            double found = evidence(sample);
            if (fabs(found) > -log(ERROR_RATE)) {
                sample->verdict = found > 0 ? '+' : '-';
                open--;
            }
        }
        /* Windows in which the cache loses everything pass: wait a little. */
        if (lost_control > 0.5)
            usleep((useconds_t)(500 + random_below(4000)));
    }
}

static int check(int wanted, double seconds, const char *fifo_to, const char *fifo_from)
{
    static struct sample samples[SAMPLES_MAX];
    to = open(fifo_to, O_WRONLY | O_CLOEXEC);
    from = open(fifo_from, O_RDONLY | O_CLOEXEC);
    size_t *order = malloc(pages * sizeof *order);
    if (to < 0 || from < 0 || order == NULL) {
        perror("resident: check");
        return 1;
    }
    int count = wanted < SAMPLES_MAX ? wanted : SAMPLES_MAX;
    if ((size_t)count > pages)
        count = (int)pages;
    for (size_t i = 0; i < pages; i++)
        order[i] = i;
    draw(order, pages, (size_t)count);
    for (int i = 0; i < count; i++)
        samples[i] = (struct sample){.page = order[i], .verdict = '?'};
    free(order);
    struct totals totals = {0};
    double begin = now();
    for (int round = 0, first = 0; round < ROUNDS && first < count; round++) {
        /* Batches of like size, each with its share of the time that is left. */
        int left = count - first, batches = (left + batch_of_round[round] - 1) / batch_of_round[round];
        for (int i = 0; i < batches; i++) {
            double share = (begin + seconds - now()) / (batches - i) / (ROUNDS - round > 1 ? 2 : 1);
            int low = first + left * i / batches, high = first + left * (i + 1) / batches;
            judge(samples + low, high - low, now() + share, &totals);
        }
        /* Those that are decided come first, the others in a new order. */
        for (int i = first; i < count; i++) {
            samples[i].found_off_color += round > 0 && samples[i].verdict == '-';
            if (samples[i].verdict == '+' || samples[i].found_off_color == 2)
                swap(samples + i, samples + first++);
            else
                samples[i].verdict = '?';
        }
        for (int i = count - 1; i > first; i--)
            swap(samples + i, samples + first + random_below((uint64_t)(i - first + 1)));
    }
    close(to);
    close(from);
    int of[3] = {0, 0, 0};
    printf("{\"verdicts\":[");
    for (int i = 0; i < count; i++) {
        struct sample *sample = samples + i;
        int turns = sample->write_turns > 0 ? sample->write_turns : 1;
        of[sample->verdict == '+' ? 0 : sample->verdict == '-' ? 1 : 2]++;
        printf("%s[%zu,\"%c\",%d,%d,%d,%.3f,%.3f]", i > 0 ? "," : "", sample->page, sample->verdict, sample->write_turns,
               sample->write_kept, sample->control_kept, sample->lost_write / turns, sample->lost_control / turns);
    }
    printf("],\"pages\":%d,\"on_color\":%d,\"off_color\":%d,\"undecided\":%d,\"pairs\":%d,\"discarded\":%d,\"uncalibrated\":%d,"
           "\"there_ticks\":%.0f,\"gone_ticks\":%.0f,\"seconds\":%.3f}\n",
           count, of[0], of[1], of[2], totals.pairs, totals.discarded, totals.uncalibrated, totals.there_ticks, totals.gone_ticks,
           now() - begin);
    fflush(stdout);
    return 0;
}

/* Memory with pages of all colors, which nobody moves: shared, in huge pages where the kernel makes them. Single frames may be what programs
 * on the colors have left over, so there are more of them. 0 if there is none. */
static int map_elsewhere(void)
{
    long second_level = sysconf(_SC_LEVEL2_CACHE_SIZE);
    size_t bytes = ELSEWHERE_LEVELS * (size_t)(second_level > 0 ? second_level : 1 << 20), most = ELSEWHERE_TIMES * bytes;
    char *mapped = mmap(NULL, most + HUGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED)
        return 0;
    char *aligned = (char *)(((uintptr_t)mapped + HUGE - 1) / HUGE * HUGE);
    elsewhere_read = (bytes - ELSEWHERE_FIRST_LEVEL) / PAGE;
    memset(aligned, 1, bytes);
    if (madvise(aligned, bytes, MADV_COLLAPSE) != 0) {
        bytes = most;
        memset(aligned, 1, bytes);
    }
    elsewhere = aligned;
    elsewhere_pages = (bytes - ELSEWHERE_FIRST_LEVEL) / PAGE;
    elsewhere_order = malloc(elsewhere_pages * sizeof *elsewhere_order);
    for (size_t page = 0; elsewhere_order != NULL && page < elsewhere_pages; page++)
        elsewhere_order[page] = page;
    return elsewhere_order != NULL;
}

int main(int argc, char **argv)
{
    char unit = 'B';
    uint64_t size = 0;
    if (argc != 3 || sscanf(argv[1], "%" SCNu64 "%c", &size, &unit) < 1 || size == 0 || strchr("BKM", unit) == NULL) {
        fprintf(stderr, "usage: resident SIZE SEED\n  SIZE: bytes, or with K or M, such as 64K\n");
        return 1;
    }
    size <<= unit == 'M' ? 20 : unit == 'K' ? 10 : 0;
    random_state = mix(strtoull(argv[2], NULL, 10));
    pages = (size + PAGE - 1) / PAGE;
    memory = aligned_alloc(PAGE, pages * PAGE);
    version = malloc(pages);
    if (memory == NULL || version == NULL || !map_elsewhere()) {
        perror("resident");
        return 1;
    }
    memset(version, 1, pages);
    make_chain();
    for (size_t page = 0; page < pages; page++)
        write_page(page);
    printf("ready %d %#" PRIxPTR "\n", (int)getpid(), (uintptr_t)memory);
    fflush(stdout);

    size_t page = 0;
    char command[640];
    setvbuf(stdin, NULL, _IONBF, 0);
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    for (;;) {
        /* Works for about half of the time. */
        double begin = now();
        for (int i = 0; i < 64; i++) {
            verify_page(page);
            write_page(page);
            page = (page + 1) % pages;
        }
        int wait_ms = 1 + (int)((now() - begin) * 1000);
        if (poll(&input, 1, wait_ms) <= 0)
            continue;
        int wanted;
        double seconds;
        if (fgets(command, sizeof command, stdin) == NULL || strcmp(command, "end\n") == 0)
            break;
        char fifo_to[256], fifo_from[256];
        if (sscanf(command, "check %d %lf %255s %255s", &wanted, &seconds, fifo_to, fifo_from) != 4 || wanted < 1) {
            fprintf(stderr, "resident: unknown command: %s", command);
            return 1;
        }
        if (check(wanted, seconds, fifo_to, fifo_from) != 0)
            return 1;
    }
    for (page = 0; page < pages; page++)
        verify_page(page);
    printf("{\"wrong_words\":0,\"pages_verified\":%" PRIu64 "}\n", pages_verified);
    return 0;
}
