// filter_kernels.h for any CPU.
#include "cpu/resize/filter_loops.h"

namespace feeder {
namespace {

struct Vectors {
    typedef double Real __attribute__((vector_size(16)));
    typedef int32_t Int __attribute__((vector_size(8)));
};

}  // namespace

const FilterKernels& portable_filter_kernels() { return FilterLoops<Vectors>::kKernels; }

}  // namespace feeder
