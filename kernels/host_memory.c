#include "kernels/host_memory.h"

#include <stdlib.h>
#include <string.h>

enum status host_memory_probe(int32_t devices, size_t *bytes, struct err *err)
{
    (void)devices, (void)err;
    *bytes = 0;
    return OK;
}

size_t host_memory_scratch_bytes(int32_t rows_max, int32_t in_max, int32_t out_max)
{
    (void)rows_max, (void)in_max, (void)out_max;
    return 0; /* none of a device's */
}

void *host_memory_alloc(struct backend *b, size_t bytes)
{
    (void)b;
    bytes = base_align(bytes > 0 ? bytes : 1, 64);
    void *p = aligned_alloc(64, bytes);
    if (p != NULL)
        memset(p, 0, bytes); /* touched before ready */
    return p;
}

void host_memory_free(struct backend *b, void *p)
{
    (void)b;
    free(p);
}

void host_memory_upload(struct backend *b, void *dst, const void *src, size_t bytes)
{
    (void)b;
    if (bytes > 0)
        memcpy(dst, src, bytes);
}

enum status host_memory_download(struct backend *b, void *dst, const void *src, size_t bytes,
                                 struct err *err)
{
    (void)err;
    host_memory_upload(b, dst, src, bytes);
    return OK;
}

void host_memory_fetch(struct backend *b, int32_t flight, void *dst, const void *src, size_t bytes)
{
    (void)flight;
    host_memory_upload(b, dst, src, bytes);
}

bool host_memory_landed(struct backend *b, int32_t flight)
{
    (void)b, (void)flight;
    return true;
}

enum status host_memory_land(struct backend *b, int32_t flight, struct err *err)
{
    (void)b, (void)flight, (void)err;
    return OK;
}

bool host_memory_record(struct backend *b)
{
    (void)b;
    return false;
}

struct recording *host_memory_record_end(struct backend *b)
{
    (void)b;
    return NULL;
}

void host_memory_replay(struct backend *b, const struct recording *r)
{
    (void)b, (void)r;
    CHECK(false); /* nothing was recorded */
}

void host_memory_recording_close(struct recording *r)
{
    CHECK(r == NULL);
}
