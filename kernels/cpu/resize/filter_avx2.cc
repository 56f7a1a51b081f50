// filter_kernels.h for AVX2.
#if defined(__x86_64__)
#include "cpu/resize/filter_loops.h"

namespace feeder {
namespace {

struct Vectors {
    typedef double Real __attribute__((vector_size(32)));
    typedef int32_t Int __attribute__((vector_size(16)));
};

}  // namespace

const FilterKernels& avx2_filter_kernels() { return FilterLoops<Vectors>::kKernels; }

}  // namespace feeder
#endif
