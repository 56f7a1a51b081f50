#include "bind/shard_rows.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <cstring>
#include <optional>
#include <vector>

#include "bind/buffer.h"
#include "bind/module.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace feeder::bind {
namespace {

using Numbers = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const int32_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;

RecordIndex::Layout layout_of(size_t record_bytes, size_t length_at, size_t steps_at, size_t height_at,
                              std::optional<size_t> offset_at, std::optional<size_t> label_at,
                              std::optional<size_t> width_at, std::optional<size_t> orientation_at) {
    RecordIndex::Layout layout{record_bytes, length_at, steps_at, height_at};
    if (offset_at && label_at && width_at && orientation_at) {
        layout.offset = *offset_at;
        layout.label = *label_at;
        layout.width = *width_at;
        layout.orientation = *orientation_at;
    }
    if (!layout.fits()) throw nb::value_error("the numbers must lie in a record");
    return layout;
}

nb::object gather(ShardRows& held, Numbers shards, Numbers rows) {
    RecordIndex& index = held.records();
    const size_t count = shards.shape(0), record_bytes = index.layout().bytes;
    if (rows.shape(0) != count) throw nb::value_error("shards and rows must be of one length");
    nb::object result = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(count * record_bytes)));
    if (!result.is_valid()) throw nb::python_error();
    char* out = PyBytes_AsString(result.ptr());
    for (size_t i = 0; i < count; ++i, out += record_bytes) {
        const uint8_t* const record = index.record(shards.data()[i], rows.data()[i]);
        if (record == nullptr) {
            if (!index.holds(shards.data()[i])) return nb::none();
            throw nb::index_error("a row past the end of its shard");
        }
        std::memcpy(out, record, record_bytes);
    }
    return result;
}

nb::object extents(ShardRows& held, Numbers shards, nb::handle data, Rows rows) {
    RecordIndex& index = held.records();
    const size_t count = rows.shape(0), record_bytes = index.layout().bytes;
    const BufferView view(data);
    if (shards.shape(0) != count || view.bytes().size() != count * record_bytes)
        throw nb::value_error("shards, records and rows must be of one length");
    std::vector<int64_t> values(4 * count);
    for (size_t i = 0; i < count; ++i) {
        const uint8_t* const record = view.bytes().data() + i * record_bytes;
        const int64_t shard = shards.data()[i];
        if (index.has_steps(record) && !index.holds_steps(shard)) return nb::none();
        const BandExtent extent = index.extent(shard, record, rows.data()[2 * i], rows.data()[2 * i + 1]);
        values[4 * i] = extent.first_row;
        values[4 * i + 1] = extent.header;
        values[4 * i + 2] = extent.begin;
        values[4 * i + 3] = extent.end;
    }
    int64_t* const found = new int64_t[4 * count + 1];
    std::memcpy(found, values.data(), values.size() * sizeof(int64_t));
    nb::capsule owner(found, [](void* p) noexcept { delete[] static_cast<int64_t*>(p); });
    const size_t shape[2] = {count, 4};
    return nb::cast(nb::ndarray<nb::numpy, int64_t, nb::ndim<2>>(found, 2, shape, owner));
}

}  // namespace

void add_shard_rows(nb::module_& module) {
    nb::class_<HeldIndex>(module, "HeldIndex", "An index that a PartRunner reads.");
    nb::class_<ShardRows, HeldIndex>(
        module, "ShardRows", "The mapped records of shards, by their numbers; buffers stay exported while they are held.")
        .def("__init__",
             [](ShardRows* self, size_t record_bytes, size_t length_at, size_t steps_at, size_t height_at,
                std::optional<size_t> offset_at, std::optional<size_t> label_at, std::optional<size_t> width_at,
                std::optional<size_t> orientation_at) {
                 new (self) ShardRows(layout_of(record_bytes, length_at, steps_at, height_at, offset_at, label_at,
                                                width_at, orientation_at));
             },
             "record_bytes"_a, "length_at"_a, "steps_at"_a, "height_at"_a, nb::kw_only(), "offset_at"_a = nb::none(),
             "label_at"_a = nb::none(), "width_at"_a = nb::none(), "orientation_at"_a = nb::none())
        .def("add", &ShardRows::add, nb::lock_self(), "shard"_a, "records"_a, "Takes a shard's records.")
        .def("add_steps", &ShardRows::add_steps, nb::lock_self(), "shard"_a, "steps"_a,
             "Takes the places of rows of a shard's images.")
        .def("remove", &ShardRows::remove, nb::lock_self(), "shard"_a, "Drops a shard.")
        .def("gather", &gather, nb::lock_self(), "shards"_a, "rows"_a,
             "Returns N records, one after the other; None if a shard is not held.")
        .def("extents", &extents, nb::lock_self(), "shards"_a, "records"_a, "rows"_a,
             "Does what row_extents() does; None if a shard's steps are not held.");
}

}  // namespace feeder::bind
