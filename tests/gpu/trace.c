/* When each kernel and copy on a GPU began and ended: a library for CUPTI, which the driver loads
 * into any program that begins with
 *
 *   CUDA_INJECTION64_PATH=libtrace.so TRACE_FILE=trace.csv
 *
 * A line each: begin and end in nanoseconds, the graph's number (0: none), the grid and the
 * mangled name; of copies their bytes. trace.py makes tables of them. Kernels that begin before the
 * one before them has ended do so here, too. Format: cupti_activity.h of the toolkit. */
#include <cupti.h>

#include <stdio.h>
#include <stdlib.h>

#define BUFFER_BYTES ((size_t)8 << 20)

static FILE *out;

static void kernel_line(const CUpti_ActivityKernel10 *k)
{
    fprintf(out, "%llu,%llu,%u,%d,%d,%d,%s\n", (unsigned long long)k->start,
            (unsigned long long)k->end, k->graphId, k->gridX, k->gridY, k->gridZ, k->name);
}

static void copy_line(const CUpti_ActivityMemcpy6 *c)
{
    fprintf(out, "%llu,%llu,0,%llu,1,1,copy\n", (unsigned long long)c->start,
            (unsigned long long)c->end, (unsigned long long)c->bytes);
}

static void CUPTIAPI give(uint8_t **buffer, size_t *size, size_t *records)
{
    *buffer = aligned_alloc(8, BUFFER_BYTES);
    *size = *buffer != NULL ? BUFFER_BYTES : 0;
    *records = 0; /* as many as fit */
}

static void CUPTIAPI take(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                          size_t used)
{
    CUpti_Activity *a = NULL;
    (void)context, (void)stream, (void)size;
    while (cuptiActivityGetNextRecord(buffer, used, &a) == CUPTI_SUCCESS) {
        if (a->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
            kernel_line((const CUpti_ActivityKernel10 *)(const void *)a);
        else if (a->kind == CUPTI_ACTIVITY_KIND_MEMCPY)
            copy_line((const CUpti_ActivityMemcpy6 *)(const void *)a);
    }
    free(buffer);
}

static void finish(void)
{
    (void)cuptiActivityFlushAll(1);
    (void)fclose(out);
}

/* Called by the driver when it is initialised; 0: the program does without. */
__attribute__((visibility("default"))) int InitializeInjection(void);

int InitializeInjection(void)
{
    const char *path = getenv("TRACE_FILE");
    out = fopen(path != NULL ? path : "trace.csv", "w");
    if (out == NULL || cuptiActivityRegisterCallbacks(give, take) != CUPTI_SUCCESS ||
        cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS ||
        cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY) != CUPTI_SUCCESS || atexit(finish) != 0) {
        fprintf(stderr, "trace: nothing is written\n");
        return 0;
    }
    return 1;
}
