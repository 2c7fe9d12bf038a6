/* The emulated device finds kernels that run ahead of what they need (tests/emulate): each case is
 * a chain of kernels in a process of its own, which has to end well or be aborted. */
#include "tests/emulate/cuda_runtime.h"

#include <cstdio>
#include <cstdlib>
#include <sys/wait.h>
#include <unistd.h>

#define N 1024u /* elements: a page, as a rule */
#define THREADS 64u

struct device {
    cudaStream_t stream;
    bool recording;
};

static void cuda_note(struct device *, const char *, int)
{
}

enum fault { NONE, READS, READS_BESIDE, WRITES, NEVER_WAITS, SOME_WAIT };

/* x[i] = i in the first half; the second half is nobody's. */
__global__ void fill_kernel(float *x, enum fault f)
{
    if (f == WRITES && threadIdx.x == 5)
        x[N - 1] = 1;
    launch_release();
    if (f != NEVER_WAITS && (f != SOME_WAIT || threadIdx.x % 2))
        launch_wait();
    for (unsigned i = threadIdx.x; i < N / 2 && f != NEVER_WAITS; i += THREADS)
        x[i] = (float)i + 1;
}

/* y[i] = x[i] + what lies beside all of it. */
__global__ void add_kernel(float *y, const float *x, enum fault f)
{
    const float beside = f != READS ? x[N - 2] : 0;
    float early = f == READS || f == READS_BESIDE ? x[threadIdx.x] : 0;
    launch_release();
    launch_wait();
    for (unsigned i = threadIdx.x; i < N / 2; i += THREADS, early = 0)
        y[i] = (early != 0 ? early : x[i]) + beside;
}

/* In a process of its own: does it end well, with the right sums? */
static bool ends_well(enum fault first, enum fault second, bool recording)
{
    const pid_t child = fork();
    int status = 0;
    if (child != 0)
        return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    struct device d = {nullptr, recording}, *c = &d;
    float *x = nullptr, *y = nullptr, *sums = nullptr;
    bool right = cudaSetDevice(0) == cudaSuccess &&
                 cudaStreamCreateWithFlags(&d.stream, 0) == cudaSuccess &&
                 cudaMalloc((void **)&x, N * sizeof *x) == cudaSuccess &&
                 cudaMalloc((void **)&y, N * sizeof *y) == cudaSuccess &&
                 cudaMallocHost((void **)&sums, N * sizeof *sums) == cudaSuccess &&
                 cudaMemsetAsync(x, 0, N * sizeof *x, d.stream) == cudaSuccess;
    for (int turn = 0; turn < 2; turn++) {
        LAUNCH_AHEAD(c, fill_kernel, 2, THREADS, 0, x, first);
        LAUNCH_AHEAD(c, add_kernel, 2, THREADS, 0, y, x, second);
    }
    right =
        right &&
        cudaMemcpyAsync(sums, y, N * sizeof *y, cudaMemcpyDeviceToHost, d.stream) == cudaSuccess &&
        cudaStreamSynchronize(d.stream) == cudaSuccess;
    for (unsigned i = 0; i < N / 2; i++)
        right = right && sums[i] == (float)i + 1;
    _exit(!right);
}

int main()
{
    static const struct {
        const char *what;
        enum fault first, second;
        bool recording, well;
    } cases[] = {
        {"all wait", NONE, NONE, true, true},
        {"not recorded: each waits for all", WRITES, READS, false, true},
        {"a read of what is new", NONE, READS, true, false},
        {"the same, behind a read of what is old", NONE, READS_BESIDE, true, false},
        {"a write", WRITES, NONE, true, false},
        {"no wait at all", NEVER_WAITS, NONE, true, false},
        {"threads that do not wait", SOME_WAIT, NONE, true, false},
    };
    int bad = 0;
    setenv("EMULATED_AHEAD", "1", 1);
    for (const auto &c : cases)
        if (ends_well(c.first, c.second, c.recording) != c.well) {
            printf("%s: %s\n", c.what, c.well ? "did not end well" : "was not found");
            bad++;
        }
    printf("%d failed\n", bad);
    return bad != 0;
}
