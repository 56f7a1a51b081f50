#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <span>

#include "bind/module.h"
#include "cpu/mask_cut.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace feeder::bind {
namespace {

template <class T>
using Mask = nb::ndarray<const T, nb::ndim<2>, nb::device::cpu>;
template <class T>
using Cut = nb::ndarray<T, nb::ndim<2>, nb::device::cpu, nb::c_contig>;
using Places = nb::ndarray<const int64_t, nb::ndim<1>, nb::device::cpu, nb::c_contig>;

std::span<const int64_t> checked(const Places& places, size_t length, const char* message) {
    const std::span<const int64_t> found(places.data(), places.shape(0));
    for (const int64_t place : found)
        if (place >= static_cast<int64_t>(length)) throw nb::value_error(message);
    return found;
}

template <class T>
void cut(Mask<T> mask, Places rows, Places columns, T fill, Cut<T> out) {
    if (out.shape(0) != rows.shape(0) || out.shape(1) != columns.shape(0))
        throw nb::value_error("out must have a row for each of rows, and a column for each of columns");
    const auto from_rows = checked(rows, mask.shape(0), "a number of rows is not in the mask");
    const auto from_columns = checked(columns, mask.shape(1), "a number of columns is not in the mask");
    nb::gil_scoped_release release;
    cut_mask(MaskView<T>{mask.data(), mask.stride(0), mask.stride(1)}, from_rows, from_columns, fill, out.data());
}

}  // namespace

void add_mask(nb::module_& module) {
    const char* doc = "Cuts a mask by the numbers of its rows and columns into out.";
    module.def("cut_mask", cut<uint8_t>, "mask"_a.noconvert(), "rows"_a, "columns"_a, "fill"_a,
               "out"_a.noconvert(), doc);
    module.def("cut_mask", cut<int32_t>, "mask"_a.noconvert(), "rows"_a, "columns"_a, "fill"_a,
               "out"_a.noconvert(), doc);
}

}  // namespace feeder::bind
