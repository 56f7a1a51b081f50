#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

#include "bind/buffer.h"
#include "bind/module.h"
#include "cpu/png_rows.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace feeder::bind {
namespace {

using RowArray = nb::ndarray<uint8_t, nb::ndim<2>, nb::device::cpu, nb::c_contig>;

void unfilter(nb::handle data, RowArray out, size_t pixel_bytes) {
    const BufferView rows(data);
    const size_t height = out.shape(0), row_bytes = out.shape(1);
    if (pixel_bytes < 1) throw nb::value_error("pixel_bytes must be at least 1");
    if (rows.bytes().size() != height * (1 + row_bytes))
        throw nb::value_error("rows must be as many as those of out, each with one byte more");
    size_t done;
    {
        nb::gil_scoped_release release;
        done = unfilter_png(rows.bytes(), height, row_bytes, pixel_bytes, out.data());
    }
    if (done < height) throw nb::value_error(("row " + std::to_string(done) + " has an unknown filter").c_str());
}

}  // namespace

void add_png(nb::module_& module) {
    module.def("unfilter_png", unfilter, "rows"_a, "out"_a, "pixel_bytes"_a = 1,
               "Undoes the filters of a PNG's inflated rows into out.");
}

}  // namespace feeder::bind
