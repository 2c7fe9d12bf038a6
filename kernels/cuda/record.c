/* DESIGN: a recording is a CUDA graph, captured from the backend's stream; the collectives between
 * are captured with the rest, because NCCL enqueues on that stream too. Launching it costs the host
 * one call instead of hundreds. Whatever cannot be captured spoils the recording and nothing else:
 * the caller then runs the ops themselves. */
#include "kernels/cuda/cuda.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

struct recording {
    struct cuda_backend *backend; /* borrowed */
    cudaGraphExec_t graph;
};

bool record_begin(struct backend *b)
{
    struct cuda_backend *c = cuda_of(b);
    /* other threads may go on with calls that a capture forbids */
    const cudaError_t e = cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal);
    c->recording = e == cudaSuccess;
    c->unrecordable = false;
    if (!c->recording)
        (void)cudaGetLastError(); /* told by the result; not to be found by the next launch */
    return c->recording;
}

struct recording *record_end(struct backend *b)
{
    struct cuda_backend *c = cuda_of(b);
    struct recording *r = malloc(sizeof *r);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaError_t e = cudaStreamEndCapture(c->stream, &graph);
    c->recording = false;
    if (e == cudaSuccess && r != NULL && !c->unrecordable)
        e = cudaGraphInstantiateWithFlags(&exec, graph, 0);
    if (e == cudaSuccess && exec != NULL)
        e = cudaGraphUpload(exec, c->stream); /* not with the first launch */
    if (graph != NULL)
        cudaGraphDestroy(graph);
    if (e == cudaSuccess && exec != NULL) {
        *r = (struct recording){c, exec};
        return r;
    }
    (void)cudaGetLastError();
    if (exec != NULL)
        cudaGraphExecDestroy(exec);
    free(r);
    return NULL;
}

void record_replay(struct backend *b, const struct recording *r)
{
    cuda_note(cuda_of(b), "replay", cudaGraphLaunch(r->graph, cuda_of(b)->stream));
}

void record_close(struct recording *r)
{
    if (r != NULL)
        cuda_note(r->backend, "replay", cudaGraphExecDestroy(r->graph));
    free(r);
}
