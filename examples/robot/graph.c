/* A graph that is restructured while it is walked: 128 Ki nodes of a line each, 8 MiB. A job makes 250 steps and ties every tenth node
 * elsewhere. No private cache holds the graph, so its share of one matters little. */
#include "robot.h"

enum { NODES = 1 << 17, STEPS = 250 };

struct node {
    uint32_t next;
    uint32_t visits;
    char name[56];
};

static struct node *nodes;
static uint32_t at, state = 3;

static void job(void) {
    for (int step = 0; step < STEPS; step++) {
        struct node *here = &nodes[at];
        here->visits++;
        if (step % 10 == 0) {
            /* Here and there exchange their ways on: every node still has one way in. */
            struct node *there = &nodes[next_number(&state) % NODES];
            uint32_t next = here->next;
            here->next = there->next;
            there->next = next;
        }
        at = here->next;
    }
}

int main(int argc, char **argv) {
    nodes = memory(NODES * sizeof *nodes);
    uint32_t *order = memory(NODES * sizeof *order);
    shuffled(order, NODES, &state);
    for (int i = 0; i < NODES; i++) nodes[order[i]].next = order[(i + 1) % NODES];
    free(order);
    return run(argc, argv, job);
}
