#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstring>

#include "bind/module.h"
#include "bind/output.h"
#include "bind/programs.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace feeder::bind {
namespace {

using Image = nb::ndarray<const uint8_t, nb::shape<3, -1, -1>, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::shape<3>, nb::c_contig, nb::device::cpu>;

// Fills the planes, best from rows that are planar or interleaved.
void copy_planes(const Image& image, const Output& planes) {
    const int64_t channel = image.stride(0), row = image.stride(1), column = image.stride(2);
    const size_t width = image.shape(2);
    for (size_t y = 0; y < image.shape(1); ++y) {
        const uint8_t* const from = image.data() + static_cast<int64_t>(y) * row;
        uint8_t* to[3];
        for (size_t c = 0; c < 3; ++c)
            to[c] = static_cast<uint8_t*>(planes.data) + c * planes.channel_elements + y * planes.row_elements;
        if (column == 3 && channel == 1) {
            pixel_kernels().deinterleave(from, planes.width, to);
            continue;
        }
        for (int64_t c = 0; c < 3; ++c) {
            const uint8_t* const samples = from + c * channel;
            if (column == 1) std::memcpy(to[c], samples, width);
            else for (size_t x = 0; x < width; ++x) to[c][x] = samples[static_cast<int64_t>(x) * column];
        }
    }
}

void augment(Image image, OutArray out, std::optional<Programs> programs, const std::string& dtype,
             const std::string& layout, std::optional<Floats> scale, std::optional<Floats> bias) {
    Output to;
    to.dtype = dtype_of(dtype);
    to.layout = layout_of(layout);
    const bool is_planar = to.layout == Layout::nchw;
    const Strides strides = strides_of(out, to.layout);
    const size_t height = image.shape(1), width = image.shape(2);
    if (height < 1 || width < 1 || height > 65535 || width > 65535) bad("image must be 1-65535 pixels high and wide");
    const size_t channels = out.shape(is_planar ? 1 : 3);
    if (out.shape(0) != 1 || (channels != 3 && !(channels == 1 && is_planar)) || out.shape(is_planar ? 2 : 1) != height ||
        out.shape(is_planar ? 3 : 2) != width || !array_holds(out, to.dtype))
        bad("out must be one image of the image's size, of the layout and dtype that are given");
    if (scale.has_value() != bias.has_value() || (scale && to.dtype == Dtype::uint8))
        bad("scale and bias go together, with floats");
    if (programs) check_programs(*programs, 1, static_cast<int>(height), static_cast<int>(width));
    to.data = out.data();
    to.channels = static_cast<int>(channels);
    to.height = static_cast<int>(height);
    to.width = static_cast<int>(width);
    to.scale = scale ? scale->data() : nullptr;
    to.bias = bias ? bias->data() : nullptr;
    if (!strides.dense) {
        to.row_elements = strides.row;
        to.channel_elements = strides.channel;
    }
    nb::gil_scoped_release release;
    static thread_local Augmenter augmenter;
    copy_planes(image, augmenter.image(to.height, to.width));
    const Program program = programs ? program_of(*programs, 0) : Program{};
    augmenter.run(program);
    augmenter.store(to);
    erase_output(program, to);
}

}  // namespace

void add_augment(nb::module_& module) {
    nb::enum_<AugmentOp>(module, "AugmentOp", nb::is_arithmetic(), "An op of a program.")
        .value("NOTHING", AugmentOp::nothing)
        .value("MIRROR", AugmentOp::mirror)
        .value("FLIP", AugmentOp::flip)
        .value("GRAYSCALE", AugmentOp::grayscale)
        .value("BRIGHTNESS", AugmentOp::brightness)
        .value("CONTRAST", AugmentOp::contrast)
        .value("SATURATION", AugmentOp::saturation)
        .value("HUE", AugmentOp::hue)
        .value("SHARPNESS", AugmentOp::sharpness)
        .value("POSTERIZE", AugmentOp::posterize)
        .value("SOLARIZE", AugmentOp::solarize)
        .value("SOLARIZE_ADD", AugmentOp::solarize_add)
        .value("AUTOCONTRAST", AugmentOp::autocontrast)
        .value("EQUALIZE", AugmentOp::equalize)
        .value("INVERT", AugmentOp::invert)
        .value("AFFINE", AugmentOp::affine)
        .value("PERSPECTIVE", AugmentOp::perspective)
        .value("BLUR", AugmentOp::blur)
        .value("PERMUTE", AugmentOp::permute)
        .value("ADD_NOISE", AugmentOp::add_noise)
        .value("MIX_START", AugmentOp::mix_start)
        .value("MIX_ADD", AugmentOp::mix_add)
        .value("MIX_FINISH", AugmentOp::mix_finish)
        .value("JPEG", AugmentOp::jpeg)
        .value("ERASE", AugmentOp::erase)
        .value("ERASE_OUTPUT", AugmentOp::erase_output)
        .value("ERASE_NOISE", AugmentOp::erase_noise);
    nb::enum_<WarpFilter>(module, "WarpFilter", nb::is_arithmetic(), "The filter of a warp.")
        .value("NEAREST", WarpFilter::nearest)
        .value("BILINEAR", WarpFilter::bilinear)
        .value("BICUBIC", WarpFilter::bicubic);
    module.def("augment", &augment, nb::arg("image").noconvert(), nb::arg("out").noconvert(), "programs"_a = nb::none(),
               nb::kw_only(), "dtype"_a = "uint8", "layout"_a = "nchw", "scale"_a = nb::none(), "bias"_a = nb::none(),
               "Runs a program, float64 [1, ops, 12], on uint8 [3, H, W]; see feeder/_native.pyi.");
}

}  // namespace feeder::bind
