/* Clusters: neighbouring blocks of a launch that run at once and read each other's shared memory;
 * sm_90 and newer. Blocks are neighbours along z. A kernel that may be launched without them asks
 * its arguments, not these functions, which do nothing on older devices. */
#ifndef TESSERA_KERNELS_CUDA_CLUSTER_CUH
#define TESSERA_KERNELS_CUDA_CLUSTER_CUH

#include "kernels/cuda/mma.cuh"

#define CLUSTER_MOST 16 /* blocks; more than 8 only where the device has room for them */

#ifndef CLUSTER_EMULATED

/* All threads of the cluster but those that have returned; each sees what the others have stored in
 * shared memory. False: the thread is to return, as where there are no clusters, or an emulated
 * one, whose block begins again, so what comes before has to bear being done twice. */
DEVICE bool cluster_meet()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __syncwarp(); /* aligned: by a warp at once */
    asm volatile("barrier.cluster.arrive.release.aligned;\n\t"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
    return true;
#else
    return false;
#endif
}

/* By all threads, after the last look at another block's memory, when what was loaded is there. It
 * orders nothing else: a fence would wait for everything that the block has stored. */
DEVICE void cluster_have_read()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

/* Waits until all have read: a block's memory is gone when it ends. */
DEVICE void cluster_leave()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __syncwarp();
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

/* What the block of this number in the cluster has where this one has `mine`, aligned to 16 bytes;
 * after cluster_meet. */
DEVICE void cluster_load(float (&y)[4], const float *mine, uint32_t block)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("{.reg .b32 at; mapa.shared::cluster.u32 at, %4, %5; "
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [at];}"
                 : "=f"(y[0]), "=f"(y[1]), "=f"(y[2]), "=f"(y[3])
                 : "r"(mma_address(mine)), "r"(block)
                 : "memory");
#endif
}

/* The same of 8 bytes. */
DEVICE void cluster_load(float (&y)[2], const float *mine, uint32_t block)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("{.reg .b32 at; mapa.shared::cluster.u32 at, %2, %3; "
                 "ld.shared::cluster.v2.f32 {%0, %1}, [at];}"
                 : "=f"(y[0]), "=f"(y[1])
                 : "r"(mma_address(mine)), "r"(block)
                 : "memory");
#endif
}

/* Of how many blocks clusters may be, a power of two, at most `most`, so that all of the grid run
 * at once, with as many along z as fill the last one; 1: there are none. The kernel's shared memory
 * has been allowed. */
template <typename... P>
static unsigned cluster_size(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                             unsigned most)
{
    cudaFuncAttributes code;
    cudaLaunchAttribute cluster = {};
    cudaLaunchConfig_t how = {};
    unsigned size = most < CLUSTER_MOST ? most : CLUSTER_MOST;
    if (size < 2)
        return 1;
    if (cudaFuncGetAttributes(&code, kernel) != cudaSuccess || code.ptxVersion < 90)
        return 1;
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    cluster.id = cudaLaunchAttributeClusterDimension;
    how.blockDim = block;
    how.dynamicSmemBytes = shared;
    how.attrs = &cluster;
    how.numAttrs = 1;
    for (; size > 1; size /= 2) {
        const unsigned count = grid.x * grid.y * ((grid.z + size - 1) / size);
        int active = 0;
        cluster.val.clusterDim = {1, 1, size};
        how.gridDim = dim3(1, 1, size);
        if (cudaOccupancyMaxActiveClusters(&active, kernel, &how) == cudaSuccess &&
            active >= (int)count)
            break;
    }
    (void)cudaGetLastError(); /* of a size that there is not */
    return size;
}

#endif
#endif
