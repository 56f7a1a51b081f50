// The index of a set as Python holds it: mapped buffers and columns.
#pragma once

#include <nanobind/nanobind.h>

#include <unordered_map>
#include <utility>

#include "cpu/part/image_index.h"

namespace feeder::bind {

// An index that a PartRunner reads, with the GIL or its lock held; see Note [without the GIL].
struct HeldIndex {
    virtual ~HeldIndex() = default;
    virtual ImageIndex& index() = 0;
};

// A buffer that stays exported while this object lives. Made and destroyed with the GIL held.
class HeldBuffer {
  public:
    HeldBuffer() = default;
    explicit HeldBuffer(nanobind::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nanobind::python_error();
    }
    HeldBuffer(HeldBuffer&& other) noexcept : view_(other.view_) { other.view_.obj = nullptr; }
    void swap(HeldBuffer& other) noexcept { std::swap(view_, other.view_); }
    ~HeldBuffer() {
        if (view_.obj != nullptr) PyBuffer_Release(&view_);
    }

    ByteSpan bytes() const { return {static_cast<const uint8_t*>(view_.buf), static_cast<size_t>(view_.len)}; }

  private:
    Py_buffer view_{};
};

// The mapped records of shards, by their numbers.
class ShardRows : public HeldIndex {
  public:
    explicit ShardRows(const RecordIndex::Layout& layout) : index_(layout) {}
    ShardRows(const ShardRows&) = delete;
    ShardRows& operator=(const ShardRows&) = delete;

    ImageIndex& index() override { return index_; }
    RecordIndex& records() { return index_; }

    // An earlier buffer is released last: its end may let other threads run.
    void add(int64_t shard, nanobind::handle records) {
        HeldBuffer held(records);
        index_.add(shard, held.bytes());
        shards_[shard].first.swap(held);
    }

    void add_steps(int64_t shard, nanobind::handle steps) {
        HeldBuffer held(steps);
        index_.add_steps(shard, held.bytes());
        shards_[shard].second.swap(held);
    }

    void remove(int64_t shard) {
        index_.remove(shard);
        const auto released = shards_.extract(shard);
    }

  private:
    RecordIndex index_;
    std::unordered_map<int64_t, std::pair<HeldBuffer, HeldBuffer>> shards_;  // records and steps
};

}  // namespace feeder::bind
