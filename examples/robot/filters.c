/* A bank of control filters: 1024 second-order sections, each on lines of its own, run in the order of the wiring. A job takes 20 samples
 * through all of them: their state, 128 KiB, is used 20 times, and how much of it the cache keeps decides how long a job takes. */
#include "robot.h"

enum { SECTIONS = 1024, SAMPLES = 20 };

struct section {
    float a1, a2, b0, b1, b2;
    float x1, x2, y1, y2;
    uint32_t next; /* which section takes the output of this one */
    float history[22];
};

static struct section *sections;
static float command;

static void sample(void) {
    uint32_t at = 0;
    float signal = command;
    for (int i = 0; i < SECTIONS; i++) {
        struct section *s = &sections[at];
        float y = s->b0 * signal + s->b1 * s->x1 + s->b2 * s->x2 - s->a1 * s->y1 - s->a2 * s->y2;
        s->x2 = s->x1;
        s->x1 = signal;
        s->y2 = s->y1;
        s->y1 = y;
        s->history[21] = y; /* on the second line of the section */
        signal = 0.5f * signal + 0.5f * y;
        at = s->next;
    }
    command = 1.0f - 0.1f * signal;
}

static void job(void) {
    for (int i = 0; i < SAMPLES; i++) sample();
}

int main(int argc, char **argv) {
    _Static_assert(sizeof(struct section) == 128, "a section is two lines");
    sections = memory(SECTIONS * sizeof *sections);
    uint32_t state = 1, order[SECTIONS];
    shuffled(order, SECTIONS, &state);
    for (int i = 0; i < SECTIONS; i++) {
        struct section *s = &sections[order[i]];
        *s = (struct section){.a1 = -1.2f, .a2 = 0.4f, .b0 = 0.05f, .b1 = 0.1f, .b2 = 0.05f};
        s->next = order[(i + 1) % SECTIONS];
    }
    return run(argc, argv, job);
}
