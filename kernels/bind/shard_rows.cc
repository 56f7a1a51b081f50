#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bind/buffer.h"
#include "bind/module.h"
#include "cpu/jpeg/bands.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace feeder::bind {
namespace {

using Numbers = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const int32_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;

// A buffer that stays exported while this object lives. Made and destroyed with the GIL held.
class HeldBuffer {
  public:
    HeldBuffer() = default;
    explicit HeldBuffer(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
    }
    HeldBuffer(HeldBuffer&& other) noexcept : view_(other.view_) { other.view_.obj = nullptr; }
    HeldBuffer& operator=(HeldBuffer&& other) noexcept {
        std::swap(view_, other.view_);
        return *this;
    }
    ~HeldBuffer() {
        if (view_.obj != nullptr) PyBuffer_Release(&view_);
    }

    ByteSpan bytes() const { return {static_cast<const uint8_t*>(view_.buf), static_cast<size_t>(view_.len)}; }

  private:
    Py_buffer view_{};
};

struct Shard {
    HeldBuffer records;
    HeldBuffer steps;
};

// The mapped records of shards, by their numbers.
class ShardRows {
  public:
    ShardRows(size_t record_bytes, size_t length_at, size_t steps_at, size_t height_at)
        : record_bytes_(record_bytes), length_at_(length_at), steps_at_(steps_at), height_at_(height_at) {
        if (std::max({length_at + 4, steps_at + 4, height_at + 2}) > record_bytes)
            throw nb::value_error("length, steps and height must lie in a record");
    }

    ShardRows(const ShardRows&) = delete;
    ShardRows& operator=(const ShardRows&) = delete;

    void add(int64_t shard, nb::handle records) {
        slot(shard).shard = -1;
        shards_[shard].records = HeldBuffer(records);
    }

    void add_steps(int64_t shard, nb::handle steps) {
        slot(shard).shard = -1;
        shards_[shard].steps = HeldBuffer(steps);
    }

    void remove(int64_t shard) {
        slot(shard).shard = -1;
        shards_.erase(shard);
    }

    nb::object gather(Numbers shards, Numbers rows) {
        const size_t count = shards.shape(0);
        if (rows.shape(0) != count) throw nb::value_error("shards and rows must be of one length");
        nb::object result = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(count * record_bytes_)));
        if (!result.is_valid()) throw nb::python_error();
        char* out = PyBytes_AS_STRING(result.ptr());
        for (size_t i = 0; i < count; ++i, out += record_bytes_) {
            const ByteSpan records = find(shards.data()[i]).records;
            if (records.data() == nullptr) return nb::none();
            const uint64_t row = static_cast<uint64_t>(rows.data()[i]);
            if (row >= records.size() / record_bytes_) throw nb::index_error("a row past the end of its shard");
            std::memcpy(out, records.data() + row * record_bytes_, record_bytes_);
        }
        return result;
    }

    nb::object extents(Numbers shards, nb::handle data, Rows rows) {
        const size_t count = rows.shape(0);
        const BufferView view(data);
        if (shards.shape(0) != count || view.bytes().size() != count * record_bytes_)
            throw nb::value_error("shards, records and rows must be of one length");
        std::vector<int64_t> values(4 * count);
        std::vector<uint32_t> places;
        for (size_t i = 0; i < count; ++i) {
            const uint8_t* const record = view.bytes().data() + i * record_bytes_;
            uint32_t length = 0, start = 0;
            uint16_t height = 0;
            std::memcpy(&length, record + length_at_, 4);
            std::memcpy(&start, record + steps_at_, 4);
            std::memcpy(&height, record + height_at_, 2);
            places.clear();
            if (start < UINT32_MAX) {
                const ByteSpan steps = find(shards.data()[i]).steps;
                if (steps.data() == nullptr) return nb::none();
                if (!read_steps(steps, start, height, rows.data()[2 * i + 1], places)) places.clear();
            }
            const BandExtent extent =
                band_extent(places, int64_t{length}, rows.data()[2 * i], rows.data()[2 * i + 1]);
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

  private:
    // Where the bytes of a shard are; null for what is not held.
    struct Slot {
        int64_t shard = -1;
        ByteSpan records, steps;
    };

    Slot& slot(int64_t shard) { return slots_[static_cast<uint64_t>(shard) % kSlots]; }

    // A table of plain places before the map: samples of a part lie in many shards, and each step to another piece of
    // memory takes as long as all else that is done for a sample.
    const Slot& find(int64_t shard) {
        Slot& found = slot(shard);
        if (found.shard == shard) return found;
        const auto held = shards_.find(shard);
        if (held == shards_.end()) return none_;
        found = {shard, held->second.records.bytes(), held->second.steps.bytes()};
        return found;
    }

    // Reads one image's values of row_places(): uint16, the height of a band, the offset of the first one, and the
    // difference of each other value to the one before it. 0xFFFF: the number is in the next two, its low half first.
    // False if they run past the end. Values that rows up to `bottom` do not need are zeros.
    static bool read_steps(ByteSpan steps, uint64_t start, uint64_t height, int64_t bottom,
                           std::vector<uint32_t>& places) {
        uint64_t at = 2 * start;
        size_t count = 1, needed = 1;
        while (places.size() < needed) {
            uint16_t value[3];
            if (at + 2 > steps.size()) return false;
            std::memcpy(value, steps.data() + at, 2);
            at += 2;
            uint32_t step = value[0];
            if (step == 0xFFFF) {
                if (at + 4 > steps.size()) return false;
                std::memcpy(value + 1, steps.data() + at, 4);
                at += 4;
                step = value[1] | uint32_t{value[2]} << 16;
            }
            if (places.empty()) {
                if (step == 0) return false;
                count = 2 + (height + step - 1) / step;
                needed = std::min(count, static_cast<size_t>(std::max<int64_t>(bottom, 0) / step) + kFurther);
            }
            places.push_back(places.size() < 2 ? step : places.back() + step);
        }
        places.resize(count);
        return true;
    }

    size_t record_bytes_, length_at_, steps_at_, height_at_;
    static constexpr size_t kSlots = 8192;
    // Values that rows need beside one for each band: height and header before them, a margin and an end behind.
    static constexpr size_t kFurther = 6;

    std::unordered_map<int64_t, Shard> shards_;
    std::vector<Slot> slots_ = std::vector<Slot>(kSlots);
    const Slot none_;
};

}  // namespace

void add_shard_rows(nb::module_& module) {
    nb::class_<ShardRows>(module, "ShardRows",
                          "The mapped records of shards, by their numbers; buffers stay exported while they are held.")
        .def(nb::init<size_t, size_t, size_t, size_t>(), "record_bytes"_a, "length_at"_a, "steps_at"_a, "height_at"_a)
        .def("add", &ShardRows::add, "shard"_a, "records"_a, "Takes a shard's records.")
        .def("add_steps", &ShardRows::add_steps, "shard"_a, "steps"_a,
             "Takes the places of rows of a shard's images.")
        .def("remove", &ShardRows::remove, "shard"_a, "Drops a shard.")
        .def("gather", &ShardRows::gather, "shards"_a, "rows"_a,
             "Returns N records, one after the other; None if a shard is not held.")
        .def("extents", &ShardRows::extents, "shards"_a, "records"_a, "rows"_a,
             "Does what row_extents() does; None if a shard's steps are not held.");
}

}  // namespace feeder::bind
