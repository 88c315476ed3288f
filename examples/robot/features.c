/* Image features: points of a generated frame are sorted into a vocabulary tree (k-means in k-means, 8 branches, 4 levels). A job takes 960
 * points down the tree; the tree has 4680 centers of a line each, 293 KiB, and a point looks at 32 of them, which depend on the image. */
#include "robot.h"

enum { BRANCHES = 8, LEVELS = 4, CENTERS = 4680, VALUES = 16, POINTS = 960 };

typedef int32_t center[VALUES];

static center *centers;
static uint32_t counts[4096], state = 2;

/* How far two points are apart, along the axes. */
static int32_t distance(const int32_t *a, const int32_t *b) {
    int32_t sum = 0;
    for (int i = 0; i < VALUES; i++) sum += abs(a[i] - b[i]);
    return sum;
}

static int32_t value(void) { return (int32_t)(next_number(&state) >> 20); }

static void job(void) {
    for (int point = 0; point < POINTS; point++) {
        center feature;
        for (int i = 0; i < VALUES; i++) feature[i] = value();
        uint32_t first = 0, leaf = 0;
        for (int level = 0; level < LEVELS; level++) {
            uint32_t best = 0;
            int32_t least = INT32_MAX;
            for (uint32_t branch = 0; branch < BRANCHES; branch++) {
                int32_t found = distance(feature, centers[first + leaf * BRANCHES + branch]);
                if (found < least) {
                    least = found;
                    best = branch;
                }
            }
            first += level == 0 ? 8 : level == 1 ? 64 : 512;
            leaf = leaf * BRANCHES + best;
        }
        counts[leaf]++;
    }
}

int main(int argc, char **argv) {
    centers = memory(CENTERS * sizeof *centers);
    for (int c = 0; c < CENTERS; c++)
        for (int i = 0; i < VALUES; i++) centers[c][i] = value();
    return run(argc, argv, job);
}
