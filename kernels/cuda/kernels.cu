// The kernels' entry points. See Note [kernels in phases] in device.h.
#include "cuda/filters.h"
#include "cuda/huffman.h"
#include "cuda/idct.h"
#include "cuda/resize.h"
#include "cuda/unpack.h"

namespace feeder::cuda {

template <typename Kernel, int kPhase = 0>
__device__ __forceinline__ void run_from(const Batch& batch, Place place, typename Kernel::Shared& shared,
                                         typename Kernel::Local& local) {
    Kernel::template run<kPhase>(batch, place, shared, local);
    if constexpr (kPhase + 1 < Kernel::kPhases) {
        __syncthreads();
        run_from<Kernel, kPhase + 1>(batch, place, shared, local);
    }
}

#define FEEDER_KERNEL(name, Kernel)                                                             \
    extern "C" __global__ void __launch_bounds__(Kernel::kThreads) name(const __grid_constant__ Batch batch) { \
        __shared__ Kernel::Shared shared;                                                       \
        Kernel::Local local;                                                                    \
        run_from<Kernel>(batch, {blockIdx.x, threadIdx.x}, shared, local);                      \
    }

FEEDER_KERNEL(feeder_huffman, Huffman)
FEEDER_KERNEL(feeder_unpack, Unpack)
FEEDER_KERNEL(feeder_idct, InverseDct)
FEEDER_KERNEL(feeder_filters, Filters)
FEEDER_KERNEL(feeder_resize, Resize)

}  // namespace feeder::cuda
