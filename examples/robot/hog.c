/* Writes to 4 MiB, over and over: what a program does to the caches of others that cares for nobody. */
#include "robot.h"

enum { BYTES = 4 << 20, LINE = 64 };

int main(void) {
    volatile char *area = memory(BYTES);
    for (;;)
        for (int at = 0; at < BYTES; at += LINE) area[at]++;
}
