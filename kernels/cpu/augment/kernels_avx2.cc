// kernels.h for AVX2.
#if defined(__x86_64__)
#include "cpu/augment/kernels_x86.h"

namespace feeder {

const AugmentKernels& avx2_augment_kernels() { return kKernels; }

}  // namespace feeder
#endif
