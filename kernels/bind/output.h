// The caller's output arrays, and the names of what they hold.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

#include "cpu/jpeg/planes.h"
#include "cpu/resize/store.h"

namespace feeder::bind {

using OutArray = nanobind::ndarray<nanobind::ndim<4>, nanobind::device::cpu>;

[[noreturn]] inline void bad(const std::string& message) { throw nanobind::value_error(message.c_str()); }

inline Dtype dtype_of(const std::string& name) {
    if (name == "uint8") return Dtype::uint8;
    if (name == "float32") return Dtype::float32;
    if (name == "float16") return Dtype::float16;
    if (name == "bfloat16") return Dtype::bfloat16;
    bad("dtype must be \"uint8\", \"float32\", \"float16\" or \"bfloat16\", not \"" + name + "\"");
}

inline Fidelity fidelity_of(const std::string& name) {
    if (name == "fast") return Fidelity::fast;
    if (name == "exact") return Fidelity::exact;
    if (name == "draft") return Fidelity::draft;
    bad("fidelity must be \"fast\", \"exact\" or \"draft\", not \"" + name + "\"");
}

inline ResizeFilter filter_of(const std::string& name) {
    if (name == "bilinear") return ResizeFilter::bilinear;
    if (name == "bicubic") return ResizeFilter::bicubic;
    bad("filter must be \"bilinear\" or \"bicubic\", not \"" + name + "\"");
}

// bfloat16 travels as numpy's uint16, or as itself in a torch tensor.
inline bool array_holds(const OutArray& out, Dtype dtype) {
    const nanobind::dlpack::dtype found = out.dtype();
    const auto is = [&](nanobind::dlpack::dtype_code code, int bits) {
        return found.code == static_cast<uint8_t>(code) && found.bits == bits && found.lanes == 1;
    };
    switch (dtype) {
        case Dtype::uint8:
            return is(nanobind::dlpack::dtype_code::UInt, 8);
        case Dtype::float32:
            return is(nanobind::dlpack::dtype_code::Float, 32);
        case Dtype::float16:
            return is(nanobind::dlpack::dtype_code::Float, 16);
        case Dtype::bfloat16:
            return is(nanobind::dlpack::dtype_code::UInt, 16) || is(nanobind::dlpack::dtype_code::Bfloat, 16);
    }
    return false;
}

}  // namespace feeder::bind
