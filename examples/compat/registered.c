/* Writes and reads a file through registered buffers of io_uring until the file named as first argument exists; checks what it reads.
 *
 *     registered STOP FILE */

#define _GNU_SOURCE
#include <fcntl.h>
#include <liburing.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { BUFFERS = 64, BYTES = 64 << 10, WORDS = BYTES / 8, PLAIN_WORDS = 1 << 20 };

static uint64_t word(uint64_t buffer, uint64_t index, uint64_t generation)
{
    uint64_t mixed = (buffer * WORDS + index + 1) * 0x9e3779b97f4a7c15 + generation * 0xbf58476d1ce4e5b9;
    return mixed ^ (mixed >> 29);
}

static void fail(const char *what, int error)
{
    fprintf(stderr, "%s: %s\n", what, strerror(error < 0 ? -error : error));
    exit(1);
}

/* All buffers at once, to or from the file. */
static void transfer(struct io_uring *ring, struct iovec *buffers, int file, int write)
{
    for (int i = 0; i < BUFFERS; i++) {
        struct io_uring_sqe *entry = io_uring_get_sqe(ring);
        if (write)
            io_uring_prep_write_fixed(entry, file, buffers[i].iov_base, BYTES, (uint64_t)i * BYTES, i);
        else
            io_uring_prep_read_fixed(entry, file, buffers[i].iov_base, BYTES, (uint64_t)i * BYTES, i);
    }
    int submitted = io_uring_submit(ring);
    if (submitted != BUFFERS)
        fail("io_uring_submit", submitted < 0 ? submitted : 5);
    for (int i = 0; i < BUFFERS; i++) {
        struct io_uring_cqe *done;
        int error = io_uring_wait_cqe(ring, &done);
        if (error == -4) { /* EINTR: asked again. */
            i--;
            continue;
        }
        if (error < 0)
            fail("io_uring_wait_cqe", error);
        if (done->res != BYTES)
            fail(write ? "a write" : "a read", done->res < 0 ? done->res : 5);
        io_uring_cqe_seen(ring, done);
    }
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    int file = open(argv[2], O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    if (file < 0) /* A file system without direct I/O. */
        file = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0) {
        perror(argv[2]);
        return 1;
    }
    struct iovec buffers[BUFFERS];
    for (int i = 0; i < BUFFERS; i++) {
        buffers[i].iov_len = BYTES;
        if (posix_memalign(&buffers[i].iov_base, 4096, BYTES) != 0)
            return 1;
        memset(buffers[i].iov_base, 0, BYTES);
    }
    struct io_uring ring;
    int error = io_uring_queue_init(BUFFERS, &ring, 0);
    if (error < 0)
        fail("io_uring_queue_init", error);
    error = io_uring_register_buffers(&ring, buffers, BUFFERS);
    if (error < 0)
        fail("io_uring_register_buffers", error);
    /* Memory that is not registered, and can be moved. */
    uint64_t *plain = malloc(PLAIN_WORDS * sizeof *plain);
    if (plain == NULL)
        return 1;
    for (uint64_t i = 0; i < PLAIN_WORDS; i++)
        plain[i] = word(BUFFERS, i, 0);

    uint64_t wrong = 0, rounds = 0;
    do {
        for (uint64_t b = 0; b < BUFFERS; b++)
            for (uint64_t i = 0; i < WORDS; i++)
                ((uint64_t *)buffers[b].iov_base)[i] = word(b, i, rounds);
        transfer(&ring, buffers, file, 1);
        for (int b = 0; b < BUFFERS; b++)
            memset(buffers[b].iov_base, 0xff, BYTES);
        transfer(&ring, buffers, file, 0);
        for (uint64_t b = 0; b < BUFFERS; b++)
            for (uint64_t i = 0; i < WORDS; i++)
                wrong += ((uint64_t *)buffers[b].iov_base)[i] != word(b, i, rounds);
        for (uint64_t i = 0; i < PLAIN_WORDS; i++)
            wrong += plain[i] != word(BUFFERS, i, 0);
        rounds++;
    } while (access(argv[1], F_OK) != 0);
    printf("%d registered buffers, %llu wrong words\n", BUFFERS, (unsigned long long)wrong);
    fprintf(stderr, "rounds %llu\n", (unsigned long long)rounds);
    io_uring_queue_exit(&ring);
    return wrong != 0;
}
