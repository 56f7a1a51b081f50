// entropy.h for any CPU.
#include "cpu/jpeg/entropy_loop.h"

namespace feeder {

const EntropyKernels& portable_entropy() { return kKernels; }

}  // namespace feeder
