/* isochrome: memory of chosen page colors.
 *
 * Pages of different colors never compete for the same sets of a cache. isochrome_open finds the colors by measuring, which takes
 * about a second and no privileges; memory handed out has whole pages of the colors asked for, in turn.
 *
 * Functions may be called from any thread, two at once as well. Those that fail say why through isochrome_error. */

#ifndef ISOCHROME_H
#define ISOCHROME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Memory whose colors are known. */
struct isochrome;

/* Measures the colors of a cache level in so many bytes of memory of this process, from which isochrome_alloc takes.
 *
 * level: the cache level; 0 for the one that isochrome colors by default: of those beyond level 1 with several colors the
 *        outermost that is private to the CPU, else the innermost.
 * bytes: at least 16 MiB is sensible; each color gets its share of the pages.
 *
 * NULL if the level has one color only, the memory is too small, or the machine is too noisy to be sure. */
struct isochrome *isochrome_open(unsigned level, size_t bytes);

/* Gives everything back, memory handed out included: nothing of it may be used any more. NULL is fine. */
void isochrome_close(struct isochrome *isochrome);

/* How many colors there are; they are numbered from 0. */
unsigned isochrome_color_count(const struct isochrome *isochrome);

/* Pages of a color that are left; 0 for a color that does not exist. */
size_t isochrome_pages_left(const struct isochrome *isochrome, uint16_t color);

/* At least so many bytes, from the beginning of a page on: page i has the color colors[i % color_count]. It holds what earlier users
 * left in it. It is not inherited by children of the process.
 *
 * NULL if a color does not exist or too few of its pages are left; then nothing is taken. */
void *isochrome_alloc(struct isochrome *isochrome, const uint16_t *colors, size_t color_count, size_t bytes);

/* Gives memory back that isochrome_alloc returned. 0, or -1 if it did not come from there; NULL is fine. */
int isochrome_free(struct isochrome *isochrome, void *memory);

/* The color of the page that holds an address of memory handed out, or, where frame numbers are shown to this process, of any page
 * whose frame was measured. -1 if it is not known. */
int isochrome_color_of(const struct isochrome *isochrome, const void *address);

/* Moves all movable memory of this process onto colors while it stands still: what `isochrome recolor` does, which is run for it, and must
 * be in PATH or named by the environment variable ISOCHROME. Meant for the end of initialization; memory touched later has any color.
 *
 * colors: as after --colors, such as "0-3", or "auto:4" for any four that are free.
 * palette: a file that `isochrome palette -o` wrote; NULL for the colors that `isochrome recolor` measures. They are numbered as there, not as
 * by isochrome_open. Memory from isochrome_alloc, which has colors already, is moved as well: use the one or the other.
 *
 * 0, or -1 if it could not be moved; it is then as it was. */
int isochrome_recolor_me(const char *colors, const char *palette);

/* Asks the memory server (`isochrome serve`) to keep memory of this process on some of its colors. The process must be in a class of the server's
 * policy, or have been started by `isochrome exec --class`. The pages are moved while the process runs, those touched later as well. Pages that
 * the memory shares with other data get the colors too. Neither children of the process nor a program that it executes have the places.
 *
 * memory, bytes: any memory of the process. Where places overlap, the later one counts. At most 64 places per process.
 * colors: a list such as "0-1", where 0 is the first color of this process; NULL for all of them again.
 *
 * 0, or -1 if no server runs, the process is in no class, or there are no such colors. */
int isochrome_place(const void *memory, size_t bytes, const char *colors);

/* Tell that a job of the calling thread begins or ends now to whoever started the program in order to observe it; nothing happens if
 * nobody did. They need no struct isochrome and cost one system call. */
void isochrome_job_begin(void);
void isochrome_job_end(void);

/* Why the last call of this thread that failed did, with a hint; an empty text if none did. Valid until the next call that fails. */
const char *isochrome_error(void);

#ifdef __cplusplus
}
#endif

#endif
