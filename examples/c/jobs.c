/* Moves itself onto chosen colors, if they are named, and then tells whoever watches where its jobs begin and end.
 *
 *     jobs [COLORS [PALETTE]]        such as: jobs 0-3
 *
 * Exit code 0: done. 1: the buffer is not as it was. 3: it could not be moved. */

#include <isochrome.h>
#include <stdio.h>
#include <stdlib.h>

enum { BYTES = 1 << 20, JOBS = 5 };

int main(int argc, char **argv)
{
    unsigned char *buffer = malloc(BYTES);
    if (buffer == NULL)
        return 1;
    for (size_t i = 0; i < BYTES; i++)
        buffer[i] = (unsigned char)(i * 7);

    if (argc > 1 && isochrome_recolor_me(argv[1], argc > 2 ? argv[2] : NULL) != 0) {
        fprintf(stderr, "%s\n", isochrome_error());
        return 3;
    }

    unsigned long sum = 0;
    for (int job = 0; job < JOBS; job++) {
        isochrome_job_begin();
        for (size_t i = 0; i < BYTES; i++)
            sum += buffer[i];
        isochrome_job_end();
    }
    printf("sum %lu\n", sum);
    fflush(stdout);

    /* Whoever started it may look at it until its input ends. */
    while (getchar() != EOF)
        ;
    for (size_t i = 0; i < BYTES; i++)
        if (buffer[i] != (unsigned char)(i * 7))
            return 1;
    return 0;
}
