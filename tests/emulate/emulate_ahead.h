/* Kernels that begin while those before them still run (LAUNCH_AHEAD of kernels/cuda/device.cuh).
 * What a block does before launch_wait() is done here while nothing is to be seen of what kernels
 * have written that may not have ended then: whoever reads it, or writes anything, ends the program
 * with a line that says which kernel, block and thread it was. Only where EMULATED_AHEAD is set,
 * and with one rank. */
#ifndef TESSERA_TESTS_EMULATE_EMULATE_AHEAD_H
#define TESSERA_TESTS_EMULATE_EMULATE_AHEAD_H

#include <cstddef>

bool ahead_watches();

/* Memory of a device: whole pages, as these bytes need. */
size_t ahead_whole(size_t bytes);
void ahead_add(const void *memory, size_t bytes);
void ahead_remove(const void *memory);

/* All kernels have ended. */
void ahead_settle();
/* A kernel begins; behind: after all before it have ended. */
void ahead_begin(const char *kernel, bool behind);
/* A block begins; it has waited, or ended without. */
void ahead_hide();
void ahead_show();
/* The kernel's last block has ended. When the next may begin: after those before this one have
 * ended, or even after this one. */
enum ahead_next { AHEAD_AT_ONCE, AHEAD_BEHIND_OTHERS, AHEAD_BEHIND_THIS };
void ahead_end(enum ahead_next next);

#endif
