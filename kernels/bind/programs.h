// The programs of N images as an array [N, ops, 12], each row an AugmentStep.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

#include "bind/output.h"
#include "cpu/augment/program.h"

namespace feeder::bind {

using Programs = nanobind::ndarray<const double, nanobind::shape<-1, -1, 12>, nanobind::c_contig, nanobind::device::cpu>;
static_assert(sizeof(AugmentStep) == 12 * sizeof(double));

inline Program program_of(const Programs& programs, size_t i) {
    const auto* const steps = reinterpret_cast<const AugmentStep*>(programs.data());
    return {steps + i * programs.shape(1), programs.shape(1)};
}

inline void check_programs(const Programs& programs, size_t count, int height, int width) {
    if (programs.shape(0) != count) bad("programs must have one entry per image (" + std::to_string(count) + ")");
    for (size_t i = 0; i < count; ++i)
        if (const char* fault = program_fault(program_of(programs, i), height, width))
            bad("programs: entry " + std::to_string(i) + ": " + fault);
}

}  // namespace feeder::bind
