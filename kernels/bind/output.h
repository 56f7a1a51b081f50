// The caller's output arrays, and the names of what they hold.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>
#include <tuple>

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

inline Layout layout_of(const std::string& name) {
    if (name == "nchw") return Layout::nchw;
    if (name == "nhwc") return Layout::nhwc;
    bad("layout must be \"nchw\" or \"nhwc\", not \"" + name + "\"");
}

// Elements from an entry to the next along each axis.
struct Strides {
    size_t image;
    size_t channel;
    size_t row;
    bool dense;
};

// Throws unless the array is C-contiguous, or the top left of such an array [N, 3, larger H, larger W].
inline Strides strides_of(const OutArray& out, Layout layout) {
    if (out.size() == 0) return {0, 0, 0, true};
    size_t step[4];
    size_t dense = 1, least = 1;
    bool is_dense = true, in_order = true;
    for (size_t axis = 4; axis-- > 0;) {
        const size_t count = out.shape(axis);
        step[axis] = count > 1 ? static_cast<size_t>(out.stride(axis)) : least;  // one entry: its stride says nothing
        in_order = in_order && (count < 2 || out.stride(axis) >= static_cast<int64_t>(least));
        is_dense = is_dense && (count < 2 || step[axis] == dense);
        dense *= count;
        least = step[axis] * count;
    }
    if (!is_dense && !(in_order && layout == Layout::nchw && step[3] == 1))
        bad("out must be C-contiguous, or rows and columns of a C-contiguous array [N, 3, H, W]");
    return {step[0], step[1], step[2], is_dense};
}

inline void fill_of(const std::tuple<int, int, int>& color, uint8_t fill[3]) {
    const int rgb[3] = {std::get<0>(color), std::get<1>(color), std::get<2>(color)};
    for (int c = 0; c < 3; ++c) {
        if (rgb[c] < 0 || rgb[c] > 255) bad("fill must be 0-255, not " + std::to_string(rgb[c]));
        fill[c] = static_cast<uint8_t>(rgb[c]);
    }
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
