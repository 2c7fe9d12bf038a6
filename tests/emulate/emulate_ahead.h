/* Kernels that begin while those before them still run (LAUNCH_AHEAD of kernels/cuda/device.cuh).
 * What a block does before launch_wait() is done here while nothing is to be seen of what kernels
 * have written that may not have ended then, as they would on a device in the worst case: whoever
 * writes anything, or reads it, ends the program with a line that says which kernel, block and
 * thread it was. Once a block has read something else of the same page, it finds NaNs instead.
 * Only where EMULATED_AHEAD is set. It is for one rank: copies and allocations of another settle
 * what is under way, and then something may be missed. */
#ifndef TESSERA_TESTS_EMULATE_EMULATE_AHEAD_H
#define TESSERA_TESTS_EMULATE_EMULATE_AHEAD_H

#include <cstddef>
#include <cstdint>

bool ahead_watches();

/* Memory of a device: whole pages, as these bytes need. */
size_t ahead_whole(size_t bytes);
void ahead_add(const void *memory, size_t bytes);
void ahead_remove(const void *memory);

/* All kernels have ended. */
void ahead_settle();
/* Blocks of the kernel of that number run; behind: after all kernels before it have ended. */
void ahead_begin(uint64_t number, const char *kernel, bool behind);
/* A block begins; it has waited, or ended without. */
void ahead_hide();
void ahead_show();
/* No block runs. The next kernel may begin at once, or when those before this one have ended. */
void ahead_end(bool at_once);

#endif
