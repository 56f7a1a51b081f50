// entropy.h with BMI2: shifts by a variable count are three operations without it, and one with it.
#if defined(__x86_64__)
#include "cpu/jpeg/entropy_loop.h"

namespace feeder {

const EntropyKernels& bmi2_entropy(CoefficientOrder order) { return kernels_of(order); }

}  // namespace feeder
#endif
