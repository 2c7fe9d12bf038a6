#include "kernels/cuda/report.h"

#include "kernels/cuda/cuda.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

static cudaError_t describe(int device, int devices, struct module_device *out)
{
    struct cudaDeviceProp prop;
    int major = 0, minor = 0, reaches = 0;
    cudaError_t e = cudaGetDeviceProperties(&prop, device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (e == cudaSuccess)
        e = cudaSetDevice(device);
    if (e == cudaSuccess)
        e = cudaMemGetInfo(&out->free, &out->total);
    for (int peer = 0; peer < devices && e == cudaSuccess; peer++) {
        if (peer == device)
            continue;
        e = cudaDeviceCanAccessPeer(&reaches, device, peer);
        out->peers |= reaches ? 1u << peer : 0;
    }
    if (e == cudaSuccess)
        (void)snprintf(out->name, sizeof out->name, "%.63s", prop.name);
    out->major = major;
    out->minor = minor;
    return e;
}

enum status report_devices(struct module_report *out, struct err *err)
{
    enum status st = OK;
    int count = 0, version = 0;
    if (cudaDriverGetVersion(&version) == cudaSuccess)
        out->driver = version; /* 0: no driver */
    if (cudaRuntimeGetVersion(&version) == cudaSuccess)
        out->runtime = version;
    TRY(cuda_count_devices(&count, err));
    out->devices = count;
    for (int d = 0; d < count && d < MODULE_DEVICES_MAX; d++) {
        const int described = count < MODULE_DEVICES_MAX ? count : MODULE_DEVICES_MAX;
        const cudaError_t e = describe(d, described, &out->device[d]);
        if (e != cudaSuccess)
            return base_fail(err, ERR_DEVICE, "device %d: %s", d, cudaGetErrorString(e));
    }
out:
    return st;
}
