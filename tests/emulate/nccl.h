/* The part of NCCL that engine/comm calls, between threads of one process, in the order of each
 * one's stream. */
#ifndef TESSERA_TESTS_EMULATE_NCCL_H
#define TESSERA_TESTS_EMULATE_NCCL_H

#include "tests/emulate/cuda_runtime_api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct emulated_nccl *ncclComm_t;
typedef struct {
    char internal[128];
} ncclUniqueId;
typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclInProgress = 7
} ncclResult_t;
typedef enum { ncclFloat32 } ncclDataType_t;
typedef enum { ncclSum } ncclRedOp_t;
typedef struct ncclConfig ncclConfig_t;
typedef struct emulated_window *ncclWindow_t;
#define NCCL_VERSION(major, minor, patch) ((major)*10000 + (minor)*100 + (patch))
#define NCCL_VERSION_CODE NCCL_VERSION(2, 30, 7)
enum { NCCL_WIN_COLL_SYMMETRIC = 1 };

const char *ncclGetErrorString(ncclResult_t r);
const char *ncclGetLastError(ncclComm_t c);
ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRank(ncclComm_t *c, int ranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *out, ncclConfig_t *config);
ncclResult_t ncclCommUserRank(ncclComm_t c, int *rank);
ncclResult_t ncclCommCount(ncclComm_t c, int *ranks);
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *r);
ncclResult_t ncclCommAbort(ncclComm_t c);
ncclResult_t ncclCommDestroy(ncclComm_t c);
ncclResult_t ncclMemAlloc(void **p, size_t bytes);
ncclResult_t ncclMemFree(void *p);
/* There are windows where EMULATED_NCCL_WINDOWS is set, and then they are faster than sums outside
 * of them; "unlike": each rank adds from itself on, so that their bits differ; "broken": their
 * memory can be set no more. */
ncclResult_t ncclCommWindowRegister(ncclComm_t c, void *p, size_t bytes, ncclWindow_t *w,
                                    int flags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t c, ncclWindow_t w);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclAllReduce(const void *src, void *dst, size_t n, ncclDataType_t t, ncclRedOp_t op,
                           ncclComm_t c, cudaStream_t s);
ncclResult_t ncclReduce(const void *src, void *dst, size_t n, ncclDataType_t t, ncclRedOp_t op,
                        int root, ncclComm_t c, cudaStream_t s);
ncclResult_t ncclBroadcast(const void *src, void *dst, size_t n, ncclDataType_t t, int root,
                           ncclComm_t c, cudaStream_t s);
ncclResult_t ncclAllGather(const void *src, void *dst, size_t n, ncclDataType_t t, ncclComm_t c,
                           cudaStream_t s);
ncclResult_t ncclSend(const void *src, size_t n, ncclDataType_t t, int peer, ncclComm_t c,
                      cudaStream_t s);
ncclResult_t ncclRecv(void *dst, size_t n, ncclDataType_t t, int peer, ncclComm_t c,
                      cudaStream_t s);

#ifdef __cplusplus
}
#endif

#endif
