/* Takes memory of two colors, uses it, and asks which color each page has.
 *
 * Exit code 0: it is as asked. 1: it is not. 3: the colors could not be found on this machine. */

#include <isochrome.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(void)
{
    const uint16_t mine[] = {1, 3};
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int wrong = 0;

    /* What cannot be had is refused with a reason. */
    if (isochrome_open(9, 64 << 20) != NULL || strstr(isochrome_error(), "hint:") == NULL)
        return 1;

    struct isochrome *memory = isochrome_open(0, 64 << 20);
    if (memory == NULL) {
        fprintf(stderr, "%s\n", isochrome_error());
        return 3;
    }
    printf("%u colors, %zu pages of color %u\n", isochrome_color_count(memory), isochrome_pages_left(memory, mine[0]), mine[0]);

    unsigned char *buffer = isochrome_alloc(memory, mine, 2, 5 * page + 1);
    if (buffer == NULL) {
        fprintf(stderr, "%s\n", isochrome_error());
        return 1;
    }
    memset(buffer, 0xa5, 6 * page);
    for (size_t i = 0; i < 6; i++) {
        int color = isochrome_color_of(memory, buffer + i * page + 17);
        printf("page %zu: color %d\n", i, color);
        wrong |= color != mine[i % 2] || buffer[i * page] != 0xa5;
    }

    const uint16_t none[] = {60000};
    wrong |= isochrome_alloc(memory, none, 1, 1) != NULL;
    wrong |= isochrome_alloc(memory, NULL, 0, 1) != NULL;
    wrong |= isochrome_free(memory, &wrong) != -1;
    wrong |= isochrome_free(memory, buffer) != 0;
    wrong |= isochrome_free(memory, buffer) != -1;
    isochrome_close(memory);
    isochrome_close(NULL);
    return wrong ? 1 : 0;
}
