// idct.h for AVX-512: four blocks at a time.
#if defined(__x86_64__)
#include "cpu/jpeg/idct_avx512.h"

namespace feeder {
const IdctKernels& avx512_idct() { return Idct<Avx512>::kKernels; }

}  // namespace feeder
#endif
