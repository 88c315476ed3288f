// Counts the pages that UFFDIO_MOVE moves without reporting them, while memory is compacted (Linux 6.8 or later, as root):
//
//     cc -O2 -pthread -o unreported_moves scripts/unreported_moves.c && ./unreported_moves SECONDS
//
// 64 MiB are moved to and fro between two ranges. The destination of every request is empty, so a page that is
// refused with EEXIST was moved by the request before it, which did not count it. [Linux 6.18, mm/userfaultfd.c, move_pages: `err` stays -EAGAIN after a page was busy]
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// In linux/userfaultfd.h since Linux 6.8.
struct move_request {
    uint64_t dst, src, len, mode;
    int64_t moved;
};
#define MOVE _IOWR(UFFDIO, 0x05, struct move_request)

enum { PAGE = 4096, WORDS = PAGE / 8, PAGES = 16384, AT_ONCE = 16 };
static const size_t FRAGMENTED = (size_t)4 << 30;
static volatile int over;

static char *mapped(size_t bytes) {
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    return memory;
}

// Has the kernel compact memory of which every other page is free.
static void *compact(void *unused) {
    char *memory = mapped(FRAGMENTED);
    while (!over) {
        for (size_t at = 0; at < FRAGMENTED; at += PAGE) memory[at] = 1;
        for (size_t at = 0; at < FRAGMENTED; at += 2 * PAGE) madvise(memory + at, PAGE, MADV_DONTNEED);
        for (int times = 0; times < 20 && !over; times++) {
            int file = open("/proc/sys/vm/compact_memory", O_WRONLY);
            if (file < 0 || write(file, "1", 1) != 1) {
                perror("compact_memory");
                exit(1);
            }
            close(file);
        }
        madvise(memory, FRAGMENTED, MADV_DONTNEED);
    }
    return unused;
}

int main(int count, char **arguments) {
    time_t end = time(NULL) + (count > 1 ? atoi(arguments[1]) : 10);
    int descriptor = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    if (descriptor < 0 || ioctl(descriptor, UFFDIO_API, &api)) return perror("userfaultfd"), 1;
    uint64_t *from = (uint64_t *)mapped((size_t)PAGES * PAGE), *to = (uint64_t *)mapped((size_t)PAGES * PAGE);
    for (size_t at = 0; at < (size_t)PAGES * WORDS; at++) from[at] = at;
    for (int side = 0; side < 2; side++) {
        struct uffdio_register range = {.range = {(uint64_t)(side ? from : to), (size_t)PAGES * PAGE},
                                        .mode = UFFDIO_REGISTER_MODE_MISSING};
        if (ioctl(descriptor, UFFDIO_REGISTER, &range)) return perror("UFFDIO_REGISTER"), 1;
    }
    pthread_t thread;
    pthread_create(&thread, NULL, compact, NULL);
    uint64_t reported = 0, unreported = 0, wrong = 0;
    while (time(NULL) < end) {
        for (int page = 0; page < PAGES;) {
            uint64_t bytes = (uint64_t)(PAGES - page < AT_ONCE ? PAGES - page : AT_ONCE) * PAGE;
            struct move_request request = {(uint64_t)(to + page * WORDS), (uint64_t)(from + page * WORDS), bytes, 0, 0};
            int error = ioctl(descriptor, MOVE, &request) ? errno : 0;
            if (request.moved > 0) {
                page += request.moved / PAGE;
                reported += request.moved / PAGE;
            } else if (error == EEXIST) {
                page++;
                unreported++;
            } else if (error != EAGAIN && error != EBUSY) {
                return perror("UFFDIO_MOVE"), 1;
            }
        }
        for (size_t at = 0; at < (size_t)PAGES * WORDS; at++) wrong += to[at] != at;
        uint64_t *other = from;
        from = to, to = other;
    }
    over = 1;
    pthread_join(thread, NULL);
    printf("%lu pages moved and reported, %lu moved and not reported, %lu wrong words\n", reported, unreported, wrong);
    return 0;
}
