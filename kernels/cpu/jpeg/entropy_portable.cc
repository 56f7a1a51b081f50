// entropy.h for any CPU.
#include "cpu/jpeg/entropy_loop.h"

namespace feeder {

const EntropyKernels& portable_entropy(CoefficientOrder order) { return kernels_of(order); }

}  // namespace feeder
