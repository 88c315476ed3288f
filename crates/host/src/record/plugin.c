/* A plugin for QEMU's user mode: writes every access of a program to the file named by its argument `out`.
 *
 * One record per instruction fetched, loaded from or stored to: address (64 bits), bytes (32 bits) and kind (32 bits; 0 load,
 * 1 store, 2 fetch), in the byte order of the host. Built by isochrome with the C compiler of the machine.
 *
 * The header belongs to QEMU and is not everywhere packaged with it (Debian 12 has none). Without it, the part of the interface
 * that is used is declared here, as version 1 has it (QEMU 4.2 to 8.2).
 */
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#if __has_include(<qemu-plugin.h>) && __has_include(<glib.h>)
#include <qemu-plugin.h>
#else
#define QEMU_PLUGIN_EXPORT __attribute__((visibility("default")))
#define QEMU_PLUGIN_VERSION 1
typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;
typedef struct qemu_info_t qemu_info_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };
enum qemu_plugin_mem_rw { QEMU_PLUGIN_MEM_RW = 3 };
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, void (*)(unsigned int, void *),
                                            enum qemu_plugin_cb_flags, void *);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *,
                                      void (*)(unsigned int, qemu_plugin_meminfo_t, uint64_t, void *),
                                      enum qemu_plugin_cb_flags, enum qemu_plugin_mem_rw, void *);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void *), void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
unsigned int qemu_plugin_mem_size_shift(qemu_plugin_meminfo_t);
bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t);
#endif

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

enum { LOAD, STORE, FETCH };

struct record {
    uint64_t address;
    uint32_t bytes;
    uint32_t kind;
};

static struct record records[4096];
static size_t count;
static int out = -1;
static pid_t recorded;
/* Threads of the program take turns at the records. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void flush_records(void)
{
    const char *at = (const char *)records;
    size_t left = count * sizeof records[0];

    count = 0;
    /* A child that the program forked has a copy of what its parent will write. */
    if (getpid() != recorded) {
        return;
    }
    while (left > 0) {
        ssize_t written = write(out, at, left);
        if (written <= 0) {
            _exit(1);
        }
        at += written;
        left -= written;
    }
}

static void record(uint64_t address, uint32_t bytes, uint32_t kind)
{
    pthread_mutex_lock(&lock);
    records[count++] = (struct record){ address, bytes, kind };
    if (count == sizeof records / sizeof records[0]) {
        flush_records();
    }
    pthread_mutex_unlock(&lock);
}

/* Addresses of user space leave the upper byte free for the size of the instruction. */
static void on_fetch(unsigned int vcpu, void *packed)
{
    (void)vcpu;
    record((uintptr_t)packed & UINT64_C(0x00ffffffffffffff), (uintptr_t)packed >> 56, FETCH);
}

static void on_access(unsigned int vcpu, qemu_plugin_meminfo_t info, uint64_t address, void *data)
{
    (void)vcpu;
    (void)data;
    record(address, UINT32_C(1) << qemu_plugin_mem_size_shift(info), qemu_plugin_mem_is_store(info) ? STORE : LOAD);
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
    size_t instructions = qemu_plugin_tb_n_insns(block);

    (void)id;
    for (size_t i = 0; i < instructions; i++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);
        uint64_t packed = qemu_plugin_insn_vaddr(instruction) | (uint64_t)qemu_plugin_insn_size(instruction) << 56;

        qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_fetch, QEMU_PLUGIN_CB_NO_REGS, (void *)(uintptr_t)packed);
        qemu_plugin_register_vcpu_mem_cb(instruction, on_access, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW, NULL);
    }
}

static void on_exit_of_program(qemu_plugin_id_t id, void *data)
{
    (void)id;
    (void)data;
    pthread_mutex_lock(&lock);
    flush_records();
    pthread_mutex_unlock(&lock);
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
    (void)info;
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "out=", 4) == 0) {
            out = open(argv[i] + 4, O_WRONLY | O_CLOEXEC);
        }
    }
    if (out < 0) {
        return -1;
    }
    recorded = getpid();
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    qemu_plugin_register_atexit_cb(id, on_exit_of_program, NULL);
    return 0;
}
