// idct.h for AVX2: two blocks at a time.
#if defined(__x86_64__)
#include "cpu/jpeg/idct_avx2.h"

namespace feeder {
const IdctKernels& avx2_idct() { return Idct<Avx2>::kKernels; }

}  // namespace feeder
#endif
