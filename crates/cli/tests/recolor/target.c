/* A program to be recolored: it writes memory of every kind, holds every byte of it against what it must be, waits in every
   way a program can wait, and forks. What it finds is in a shared file: see enum count.

   target torture FILE   runs until SIGTERM
   target rings FILE     reads its own file by io_uring all the time, in every way, and checks what it reads
   target vforks FILE    begins other programs all the time, and checks its memory
   target holder FILE    holds the frames of color 5 in 1 GiB and gives back the others; says "ready" and waits
   target plain FILE     holds 64 MiB of plain memory; says "ready" and waits
   target mappings FILE  has 60 000 mappings, and checks them
   target library FILE   reads a private mapping of 256 MiB of a file, as a program reads its code, and checks it
   target alone FILE     the same, but neither forks nor makes huge pages again
   target filtered FILE  filters its system calls, but allows those that are needed; says "ready" and waits
   target seccomp|strict|traced FILE           is what must not be recolored; says "ready" and waits
   target uring|pinned|aio|device FILE         may have its memory written to by the kernel; says "ready" and waits */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <linux/perf_event.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum count { ROUNDS, WRONG, BROKEN_OFF, BROKEN_OFF_EPOLL, WAITS, FORKS, AREAS, COUNTS };

static _Atomic uint64_t *counts;

#define PAGE 4096
#define WORDS (PAGE / 8)

struct area {
    volatile uint64_t *words;
    size_t pages;
};

/* The word that belongs at `index` after `generation` rounds. */
static uint64_t word_at(const struct area *area, size_t index, uint64_t generation) {
    uint64_t x = (uint64_t)(uintptr_t)area->words + index * 0x9e3779b97f4a7c15ull + generation * 0xbf58476d1ce4e5b9ull;
    x ^= x >> 31;
    return x * 0x94d049bb133111ebull;
}

static uint64_t wrong_words(const struct area *area, uint64_t generation) {
    uint64_t wrong = 0;
    for (size_t i = 0; i < area->pages * WORDS; i++)
        wrong += area->words[i] != word_at(area, i, generation);
    return wrong;
}

/* Checks each page and writes it anew. Every 16th page is only read, and holds its first words for good. */
static void work(struct area area) {
    for (size_t i = 0; i < area.pages * WORDS; i++)
        area.words[i] = word_at(&area, i, 0);
    counts[AREAS]++;
    for (uint64_t generation = 0;; generation++) {
        for (size_t page = 0; page < area.pages; page++) {
            int keeps = page % 16 == 15;
            for (size_t i = page * WORDS; i < (page + 1) * WORDS; i++) {
                counts[WRONG] += area.words[i] != word_at(&area, i, keeps ? 0 : generation);
                if (!keeps)
                    area.words[i] = word_at(&area, i, generation + 1);
            }
            if (page % 64 == 63)
                sched_yield();
        }
        counts[ROUNDS]++;
        usleep(500);
    }
}

static void *works(void *area) {
    work(*(struct area *)area);
    return NULL;
}

/* Memory that is joined to a huge page again and again. */
static void *joins(void *area) {
    for (;; usleep(20000)) {
        prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
        madvise((void *)((struct area *)area)->words, 2 << 20, 25 /* MADV_COLLAPSE */);
    }
    return NULL;
}

static void *works_on_its_stack(void *unused) {
    (void)unused;
    volatile uint64_t words[48 * WORDS] __attribute__((aligned(PAGE)));
    work((struct area){words, 48});
    return NULL;
}

static void *map(size_t bytes, int flags, int descriptor) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(9);
    }
    return memory;
}

/* Code and constants must stay what they were. */
extern const char __executable_start, etext;
static const uint64_t constants[4 * WORDS] = {1, 2, 3, [2 * WORDS] = 4};
static uint64_t initialized[8 * WORDS] = {5, 6, 7, [4 * WORDS] = 8};

static uint64_t sum_of(const void *begin, const void *end) {
    uint64_t sum = 0;
    for (const unsigned char *byte = begin; byte < (const unsigned char *)end; byte++)
        sum = sum * 31 + *byte;
    return sum;
}

static uint64_t sum_of_all(void) {
    return sum_of(&__executable_start, &etext) ^ sum_of(constants, constants + 4 * WORDS) ^
           sum_of(initialized, initialized + 8 * WORDS);
}

static void *sums(void *unused) {
    uint64_t first = sum_of_all();
    counts[AREAS]++;
    for (;; usleep(1000)) {
        counts[WRONG] += sum_of_all() != first;
        counts[ROUNDS]++;
    }
    return unused;
}

/* A child sees what its parent had. */
static void *forks(void *unused) {
    struct area area = {map(128 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1), 128};
    for (size_t i = 0; i < area.pages * WORDS; i++)
        area.words[i] = word_at(&area, i, 0);
    counts[AREAS]++;
    for (;; usleep(20000)) {
        pid_t child = fork();
        if (child == 0) {
            uint64_t wrong = wrong_words(&area, 0);
            area.words[7] = 7;
            usleep(5000);
            _exit(wrong != 0);
        }
        int status = 0;
        while (child > 0 && waitpid(child, &status, 0) < 0)
            counts[BROKEN_OFF]++;
        counts[WRONG] += status != 0 || wrong_words(&area, 0) != 0;
        counts[FORKS]++;
    }
    return unused;
}

static const struct timespec nap = {0, 30000000};

static void *sleeps(void *unused) {
    for (;; counts[WAITS]++)
        if (nanosleep(&nap, NULL))
            counts[BROKEN_OFF]++;
    return unused;
}

static void *waits_on_a_futex(void *unused) {
    int word = 0;
    for (;; counts[WAITS]++)
        if (syscall(SYS_futex, &word, FUTEX_WAIT, 0, &nap, NULL, 0) && errno != ETIMEDOUT)
            counts[BROKEN_OFF]++;
    return unused;
}

static void *waits_for_events(void *unused) {
    int events = epoll_create1(0);
    struct epoll_event event;
    for (;; counts[WAITS]++)
        if (epoll_wait(events, &event, 1, 30) < 0)
            counts[BROKEN_OFF_EPOLL]++;
    return unused;
}

static void *polls(void *unused) {
    for (;; counts[WAITS]++)
        if (ppoll(NULL, 0, &nap, NULL) < 0)
            counts[BROKEN_OFF]++;
    return unused;
}

static int ends[2];

static void *writes(void *unused) {
    for (;; usleep(10000))
        if (write(ends[1], "x", 1) != 1)
            counts[BROKEN_OFF]++;
    return unused;
}

static void *reads(void *unused) {
    char byte;
    for (;; counts[WAITS]++) {
        if (read(ends[0], &byte, 1) != 1)
            counts[BROKEN_OFF]++;
        else
            counts[WRONG] += byte != 'x';
    }
    return unused;
}

static void begin(void *(*body)(void *), void *argument) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, body, argument)) {
        perror("pthread_create");
        exit(9);
    }
}

static uint64_t zeroed[96 * WORDS] __attribute__((aligned(PAGE)));

static void torture(int forking) {
    static struct area areas[6];
    areas[0] = (struct area){malloc(160 * PAGE), 160};
    areas[1] = (struct area){zeroed, 96};
    areas[2] = (struct area){map(160 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1), 160};
    uintptr_t huge = (uintptr_t)map(4 << 20, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    huge = (huge + (2 << 20) - 1) & ~(uintptr_t)((2 << 20) - 1);
    madvise((void *)huge, 2 << 20, MADV_HUGEPAGE);
    areas[3] = (struct area){(void *)huge, 512};
    char name[] = "/tmp/isochrome-target-XXXXXX";
    int file = mkstemp(name);
    unlink(name);
    if (ftruncate(file, 64 * PAGE))
        exit(9);
    areas[4] = (struct area){map(64 * PAGE, MAP_PRIVATE, file), 64};
    areas[5] = (struct area){map(32 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1), 32};
    mlock((void *)areas[5].words, 32 * PAGE);
    for (int i = 0; i < 6; i++)
        begin(works, &areas[i]);
    if (pipe(ends))
        exit(9);
    void *(*bodies[])(void *) = {works_on_its_stack, sums,  sleeps, waits_on_a_futex,
                                 waits_for_events,   polls, writes, reads};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        begin(bodies[i], NULL);
    if (forking) {
        begin(forks, NULL);
        begin(joins, &areas[3]);
    }
}

/* An io_uring by the system calls themselves: one request at a time is made for each of its slots. */
struct ring {
    int descriptor;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *entries;
    struct io_uring_cqe *answers;
};

#define SLOTS 16

static int open_ring(struct ring *ring) {
    struct io_uring_params parameters = {0};
    ring->descriptor = syscall(SYS_io_uring_setup, SLOTS, &parameters);
    if (ring->descriptor < 0 || !(parameters.features & IORING_FEAT_SINGLE_MMAP))
        return -1;
    size_t sq = parameters.sq_off.array + parameters.sq_entries * sizeof(unsigned);
    size_t cq = parameters.cq_off.cqes + parameters.cq_entries * sizeof(struct io_uring_cqe);
    char *rings = mmap(NULL, sq > cq ? sq : cq, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->descriptor,
                       IORING_OFF_SQ_RING);
    ring->entries = mmap(NULL, parameters.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_POPULATE, ring->descriptor, IORING_OFF_SQES);
    if (rings == MAP_FAILED || ring->entries == MAP_FAILED)
        return -1;
    ring->sq_tail = (unsigned *)(rings + parameters.sq_off.tail);
    ring->sq_mask = (unsigned *)(rings + parameters.sq_off.ring_mask);
    ring->sq_array = (unsigned *)(rings + parameters.sq_off.array);
    ring->cq_head = (unsigned *)(rings + parameters.cq_off.head);
    ring->cq_tail = (unsigned *)(rings + parameters.cq_off.tail);
    ring->cq_mask = (unsigned *)(rings + parameters.cq_off.ring_mask);
    ring->answers = (struct io_uring_cqe *)(rings + parameters.cq_off.cqes);
    return 0;
}

/* How a thread reads: through the page cache or past it, by threads of the kernel or not, into registered buffers or not. */
struct way {
    int direct, forced, registered;
};

static const char *read_file;
#define FILE_PAGES 1024
#define READ_PAGES 8

static uint64_t file_word(uint64_t index) {
    return (index + 1) * 0x9e3779b97f4a7c15ull;
}

static void *reads_by_ring(void *argument) {
    const struct way *way = argument;
    struct ring ring;
    size_t bytes = READ_PAGES * PAGE;
    uint64_t *buffers = map(SLOTS * bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    struct iovec whole = {buffers, SLOTS * bytes};
    int file = open(read_file, O_RDONLY | (way->direct ? O_DIRECT : 0));
    /* A file system without reads past the page cache. */
    if (file < 0 && way->direct)
        file = open(read_file, O_RDONLY);
    if (file < 0 || open_ring(&ring) ||
        (way->registered && syscall(SYS_io_uring_register, ring.descriptor, IORING_REGISTER_BUFFERS, &whole, 1))) {
        perror("io_uring");
        exit(8);
    }
    counts[AREAS]++;
    uint64_t random = (uintptr_t)argument, first[SLOTS];
    for (;;) {
        unsigned tail = *ring.sq_tail;
        for (unsigned slot = 0; slot < SLOTS; slot++) {
            random = random * 6364136223846793005ull + 1442695040888963407ull;
            first[slot] = (random >> 33) % (FILE_PAGES - READ_PAGES);
            memset((char *)buffers + slot * bytes, 0x55, bytes);
            struct io_uring_sqe *entry = &ring.entries[(tail + slot) & *ring.sq_mask];
            memset(entry, 0, sizeof *entry);
            entry->opcode = way->registered ? IORING_OP_READ_FIXED : IORING_OP_READ;
            entry->flags = way->forced ? IOSQE_ASYNC : 0;
            entry->fd = file;
            entry->off = first[slot] * PAGE;
            entry->addr = (uintptr_t)buffers + slot * bytes;
            entry->len = bytes;
            entry->user_data = slot;
            ring.sq_array[(tail + slot) & *ring.sq_mask] = (tail + slot) & *ring.sq_mask;
        }
        __atomic_store_n(ring.sq_tail, tail + SLOTS, __ATOMIC_RELEASE);
        for (unsigned submitted = 0; submitted < SLOTS;) {
            int made = syscall(SYS_io_uring_enter, ring.descriptor, SLOTS - submitted, 0, 0, NULL, 0);
            submitted += made > 0 ? made : 0;
        }
        for (unsigned done = 0; done < SLOTS;) {
            unsigned head = *ring.cq_head;
            if (head == __atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE)) {
                /* An interrupted wait is not a failure: the ring is looked at again. */
                syscall(SYS_io_uring_enter, ring.descriptor, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
                continue;
            }
            struct io_uring_cqe *answer = &ring.answers[head & *ring.cq_mask];
            uint64_t slot = answer->user_data;
            counts[WRONG] += answer->res != (int)bytes;
            for (size_t i = 0; i < bytes / 8; i++)
                counts[WRONG] += buffers[slot * bytes / 8 + i] != file_word(first[slot] * WORDS + i);
            __atomic_store_n(ring.cq_head, head + 1, __ATOMIC_RELEASE);
            done++;
        }
        counts[ROUNDS]++;
        counts[WAITS]++;
    }
    return NULL;
}

static void rings(const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s.read", name);
    read_file = path;
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (ftruncate(file, FILE_PAGES * PAGE))
        exit(9);
    uint64_t *words = map(FILE_PAGES * PAGE, MAP_SHARED, file);
    for (uint64_t i = 0; i < FILE_PAGES * WORDS; i++)
        words[i] = file_word(i);
    if (fsync(file) || munmap(words, FILE_PAGES * PAGE))
        exit(9);
    static const struct way ways[] = {{0, 1, 0}, {1, 0, 0}, {0, 1, 1}, {1, 1, 1}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        begin(reads_by_ring, (void *)&ways[i]);
    static struct area areas[2];
    for (int i = 0; i < 2; i++) {
        areas[i] = (struct area){map(256 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1), 256};
        begin(works, &areas[i]);
    }
}

extern char **environ;

static void *vforks(void *unused) {
    static char *arguments[] = {"true", NULL};
    counts[AREAS]++;
    for (;; usleep(1000)) {
        pid_t child = vfork();
        if (child == 0) {
            execvpe("true", arguments, environ);
            _exit(1);
        }
        int status = 0;
        while (child > 0 && waitpid(child, &status, 0) < 0)
            counts[BROKEN_OFF]++;
        counts[WRONG] += child < 0 || status != 0;
        counts[WAITS]++;
    }
    return unused;
}

/* As many mappings as a program may have by default: of every two neighbors one may only be read. */
static void *maps_much(void *unused) {
    enum { COUNT = 30000 };
    static uint64_t *pages[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        pages[i] = map(2 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
        pages[i][3] = i;
        mprotect((char *)pages[i] + PAGE, PAGE, PROT_NONE);
        if (i % 2)
            mprotect(pages[i], PAGE, PROT_READ);
    }
    counts[AREAS]++;
    for (uint64_t generation = 0;; generation++) {
        for (size_t i = 0; i < COUNT; i++) {
            counts[WRONG] += pages[i][3] != i + (i % 2 ? 0 : generation);
            if (i % 2 == 0)
                pages[i][3]++;
        }
        counts[ROUNDS]++;
        counts[WAITS]++;
        usleep(500);
    }
    return unused;
}

/* A private mapping of a large file that may only be read. */
static void *reads_library(void *name) {
    enum { COUNT = 65536 };
    int file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (ftruncate(file, (off_t)COUNT * PAGE))
        exit(9);
    for (uint64_t i = 0; i < COUNT; i++)
        if (pwrite(file, &i, sizeof i, (off_t)(i * PAGE)) != sizeof i)
            exit(9);
    uint64_t *words = mmap(NULL, (size_t)COUNT * PAGE, PROT_READ, MAP_PRIVATE, file, 0);
    if (words == MAP_FAILED)
        exit(9);
    for (int round = 0;; round++) {
        for (uint64_t i = 0; i < COUNT; i++)
            counts[WRONG] += ((volatile uint64_t *)words)[i * WORDS] != i;
        if (round == 0)
            counts[AREAS]++;
        counts[ROUNDS]++;
        counts[WAITS]++;
        usleep(500);
    }
    return name;
}

/* Keeps the pages of 1 GiB whose frames have this color, of 16 by the bits of their numbers. */
static int hold_color(uint64_t color) {
    enum { COUNT = 1 << 18, AT_ONCE = 1 << 12 };
    static uint64_t entries[AT_ONCE];
    char *memory = map((size_t)COUNT * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    int numbers = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    madvise(memory, (size_t)COUNT * PAGE, MADV_NOHUGEPAGE);
    for (size_t page = 0; page < COUNT; page++)
        memory[page * PAGE] = 1;
    for (size_t first = 0; first < COUNT; first += AT_ONCE) {
        off_t at = (off_t)(((uintptr_t)memory / PAGE + first) * sizeof *entries);
        if (pread(numbers, entries, sizeof entries, at) != sizeof entries)
            return 0;
        for (size_t page = 0; page < AT_ONCE; page++)
            if ((entries[page] & ((1ull << 55) - 1)) % 16 != color)
                madvise(memory + (first + page) * PAGE, PAGE, MADV_DONTNEED);
    }
    close(numbers);
    return 1;
}

static void filter_calls(int call, uint32_t action) {
    /* One call comes to `action`, all others are allowed. */
    struct {
        uint16_t code;
        uint8_t jt, jf;
        uint32_t k;
    } filter[] = {{0x20, 0, 0, 0}, {0x15, 0, 1, call}, {0x06, 0, 0, action}, {0x06, 0, 0, 0x7fff0000u}};
    struct {
        uint16_t length;
        void *filter;
    } program = {4, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        exit(9);
}

int main(int argc, char **argv) {
    // A test that is killed leaves nothing behind that keeps a CPU busy.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (argc != 3)
        return 9;
    int file = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (ftruncate(file, PAGE))
        return 9;
    counts = map(PAGE, MAP_SHARED, file);
    sigset_t end;
    sigemptyset(&end);
    sigaddset(&end, SIGTERM);
    sigprocmask(SIG_BLOCK, &end, NULL);
    if (!strcmp(argv[1], "torture") || !strcmp(argv[1], "alone"))
        torture(!strcmp(argv[1], "torture"));
    if (!strcmp(argv[1], "rings"))
        rings(argv[2]);
    if (!strcmp(argv[1], "vforks")) {
        static struct area area;
        area = (struct area){map(256 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1), 256};
        begin(works, &area);
        begin(vforks, NULL);
    }
    if (!strcmp(argv[1], "plain"))
        memset(map(64 << 20, MAP_PRIVATE | MAP_ANONYMOUS, -1), 1, 64 << 20);
    if (!strcmp(argv[1], "mappings"))
        begin(maps_much, NULL);
    if (!strcmp(argv[1], "library")) {
        static char name[4096];
        snprintf(name, sizeof name, "%s.so", argv[2]);
        begin(reads_library, name);
    }
    if (!strcmp(argv[1], "holder") && !hold_color(5))
        return 8;
    /* Two filters, of which the stricter counts: ptrace kills, userfaultfd fails. */
    if (!strcmp(argv[1], "filtered")) {
        filter_calls(SYS_ptrace, 0x80000000u);
        filter_calls(SYS_userfaultfd, 0x00050001u);
    }
    /* Killed even by what the kernel restarts a broken-off wait with. */
    if (!strcmp(argv[1], "seccomp"))
        filter_calls(SYS_restart_syscall, 0x80000000u);
    if (!strcmp(argv[1], "uring") || !strcmp(argv[1], "pinned")) {
        char parameters[120] = {0};
        int ring = syscall(SYS_io_uring_setup, 4, parameters);
        if (ring < 0)
            return 8;
        struct iovec buffer = {map(16 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1), 16 * PAGE};
        if (!strcmp(argv[1], "pinned") && syscall(SYS_io_uring_register, ring, 0 /* IORING_REGISTER_BUFFERS */, &buffer, 1))
            return 8;
    }
    unsigned long context = 0;
    if (!strcmp(argv[1], "aio") && syscall(SYS_io_setup, 8, &context))
        return 8;
    if (!strcmp(argv[1], "device")) {
        /* The kernel's own pages, which belong to no memory of the program: a ring of events. */
        struct perf_event_attr attributes = {.type = PERF_TYPE_SOFTWARE, .size = sizeof attributes, .config = 9 /* dummy */};
        int events = syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0);
        if (events < 0 || mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, events, 0) == MAP_FAILED)
            return 8;
    }
    if (!strcmp(argv[1], "traced") && fork() == 0) {
        ptrace(PTRACE_SEIZE, getppid(), 0, 0);
        printf("ready\n");
        fflush(stdout);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pause();
    }
    if (!strcmp(argv[1], "strict")) {
        int ends[2];
        char byte;
        if (pipe(ends) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT))
            return 9;
        write(1, "ready\n", 6);
        return read(ends[0], &byte, 1) != 0;
    }
    if (strcmp(argv[1], "traced"))
        printf("ready\n");
    fflush(stdout);
    struct timespec long_time = {1000, 0};
    if (!strcmp(argv[1], "seccomp"))
        return nanosleep(&long_time, NULL) != 0;
    int signal;
    sigwait(&end, &signal);
    return counts[WRONG] != 0;
}
