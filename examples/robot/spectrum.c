/* A pipeline over a microphone: window, Fourier transform of 512 points, power, running mean. All its data are 14 KiB, which the innermost
 * cache holds. */
#include "robot.h"

#include <complex.h>
#include <math.h>

enum { POINTS = 512, BITS = 9 };

static float window[POINTS], power[POINTS / 2];
static float complex buffer[POINTS], twiddle[POINTS / 2];
static uint32_t now;

static void transform(void) {
    for (uint32_t i = 0; i < POINTS; i++) {
        uint32_t j = 0;
        for (int bit = 0; bit < BITS; bit++) j |= (i >> bit & 1) << (BITS - 1 - bit);
        if (j > i) {
            float complex swapped = buffer[i];
            buffer[i] = buffer[j];
            buffer[j] = swapped;
        }
    }
    for (uint32_t half = 1; half < POINTS; half *= 2)
        for (uint32_t first = 0; first < POINTS; first += 2 * half)
            for (uint32_t k = 0; k < half; k++) {
                float complex w = twiddle[k * (POINTS / 2 / half)], a = buffer[first + k], b = buffer[first + half + k];
                /* By hand: the operator of C99 looks for infinities. */
                float complex product = CMPLXF(crealf(w) * crealf(b) - cimagf(w) * cimagf(b), crealf(w) * cimagf(b) + cimagf(w) * crealf(b));
                buffer[first + k] = a + product;
                buffer[first + half + k] = a - product;
            }
}

static void job(void) {
    for (int i = 0; i < POINTS; i++, now++) buffer[i] = window[i] * (float)((now * now >> 3) & 255);
    transform();
    for (int i = 0; i < POINTS / 2; i++) {
        float re = crealf(buffer[i]), im = cimagf(buffer[i]);
        power[i] = 0.9f * power[i] + 0.1f * (re * re + im * im);
    }
}

int main(int argc, char **argv) {
    for (int i = 0; i < POINTS; i++) window[i] = 0.5f - 0.5f * cosf(6.2831853f * i / POINTS);
    for (int i = 0; i < POINTS / 2; i++) twiddle[i] = CMPLXF(cosf(6.2831853f * i / POINTS), -sinf(6.2831853f * i / POINTS));
    return run(argc, argv, job);
}
