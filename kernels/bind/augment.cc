#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstring>

#include "bind/module.h"
#include "bind/programs.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace feeder::bind {
namespace {

using Image = nb::ndarray<uint8_t, nb::shape<3, -1, -1>, nb::c_contig, nb::device::cpu>;

void augment(Image image, const Programs& programs) {
    const size_t height = image.shape(1), width = image.shape(2);
    if (height < 1 || width < 1 || height > 65535 || width > 65535) bad("image must be 1-65535 pixels high and wide");
    check_programs(programs, 1, static_cast<int>(height), static_cast<int>(width));
    Output out;
    out.data = image.data();
    out.height = static_cast<int>(height);
    out.width = static_cast<int>(width);
    nb::gil_scoped_release release;
    Augmenter augmenter;
    const Output planar = augmenter.image(out.height, out.width);
    for (size_t c = 0; c < 3; ++c)
        std::memcpy(static_cast<uint8_t*>(planar.data) + c * planar.channel_elements, image.data() + c * height * width,
                    height * width);
    augmenter.run(program_of(programs, 0));
    augmenter.store(out);
    erase_output(program_of(programs, 0), out);
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
        .value("ERASE", AugmentOp::erase)
        .value("ERASE_OUTPUT", AugmentOp::erase_output)
        .value("ERASE_NOISE", AugmentOp::erase_noise);
    nb::enum_<WarpFilter>(module, "WarpFilter", nb::is_arithmetic(), "The filter of a warp.")
        .value("NEAREST", WarpFilter::nearest)
        .value("BILINEAR", WarpFilter::bilinear)
        .value("BICUBIC", WarpFilter::bicubic);
    module.def("augment", &augment, nb::arg("image").noconvert(), "programs"_a,
               "Runs a program, float64 [1, ops, 12], on uint8 [3, H, W] in place; see feeder/_native.pyi.");
}

}  // namespace feeder::bind
