// Codebooks that are known to a fuzz target's decoders.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "cpu/packed/codebook.h"

namespace feeder {

inline constexpr int kCodebooks = 16;

// Codebooks of few shapes, in which most numbers need a patch, and of many. Their ids are their numbers. All are known from
// the first call on, so that an input's outcome does not depend on those before it.
inline const Codebook& codebook(uint8_t number) {
    static const bool all_known = [] {
        constexpr unsigned kShapes[kCodebooks] = {3, 256, 1, 2, 8, 31, 32, 33, 63, 64, 65, 100, 128, 129, 200, 255};
        for (uint8_t n = 0; n < kCodebooks; ++n) {
            std::vector<Shape> shapes;
            for (unsigned i = 0; i < kShapes[n]; ++i) {
                Shape shape;
                for (size_t g = 0; g < kGroups; ++g) shape[g] = static_cast<uint8_t>((i * (37u + 10u * n) >> g) & 7);
                shapes.push_back(shape);
            }
            shapes.back().fill(7);
            if (!add_codebook({n}, write_codebook(shapes, shapes))) return false;
        }
        return true;
    }();
    if (!all_known) std::abort();
    return *find_codebook({number});
}

}  // namespace feeder
