/* Image features: points of a generated frame are sorted into a vocabulary tree (k-means in k-means, 8 branches, 4 levels). A job takes 48
 * points down the tree; the tree has 4680 centers of a line each, 293 KiB, and which of them a job needs depends on the image. */
#include "robot.h"

enum { BRANCHES = 8, LEVELS = 4, CENTERS = 4680, VALUES = 16, POINTS = 48 };

typedef float center[VALUES];

static center *centers;
static uint32_t counts[4096], state = 2;

/* The squared distance of two points. */
static float distance(const float *a, const float *b) {
    float sum = 0;
    for (int i = 0; i < VALUES; i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sum;
}

static float value(void) { return (float)(next_number(&state) >> 8) / (1 << 24); }

static void job(void) {
    for (int point = 0; point < POINTS; point++) {
        center feature;
        for (int i = 0; i < VALUES; i++) feature[i] = value();
        uint32_t first = 0, leaf = 0;
        for (int level = 0; level < LEVELS; level++) {
            uint32_t best = 0;
            float least = 1e30f;
            for (uint32_t branch = 0; branch < BRANCHES; branch++) {
                float found = distance(feature, centers[first + leaf * BRANCHES + branch]);
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
