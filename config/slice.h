/* How long a thread runs before another may have its core. Who asks for short turns also gets the
 * core sooner when it wakes up (Linux 6.12; kernels before that do not listen). */
#ifndef TESSERA_CONFIG_SLICE_H
#define TESSERA_CONFIG_SLICE_H

#include <stdint.h>

/* For the calling thread, and for threads and processes it starts from then on; 0: as is usual. A
 * wish: when it is refused nothing changes. */
void slice_request(int64_t ns);

#endif
