// A set's index: where each image is, its properties, and the places of its rows. Nothing in it is trusted.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "cpu/bytes.h"
#include "cpu/jpeg/bands.h"

namespace feeder {

// A sample's image, as the index has it; not checked.
struct IndexedImage {
    int64_t shard = -1;
    uint64_t offset = 0;  // in the shard, bytes
    uint64_t length = 0;
    uint32_t width = 0;  // as stored, pixels
    uint32_t height = 0;
    int64_t label = 0;
    uint64_t places = 0;  // number of its first value among the places of rows
    uint8_t orientation = 0;
};

class ImageIndex {
  public:
    virtual ~ImageIndex() = default;

    // Finds a sample by its shard and its row there. False: the shard is not held, with the places of its rows if they are
    // needed, or has no such row.
    virtual bool find(int64_t shard, int64_t row, bool needs_places, IndexedImage& image) = 0;

    // The bytes needed for some rows of pixels, see band_extent().
    virtual BandExtent extent(const IndexedImage& image, int64_t top, int64_t bottom) = 0;

    int64_t worth_bytes = 8192;  // gaps of fewer bytes are read, too; as in band_extent()
};

// Records of one size for each shard, and the differences of the places of rows.
class RecordIndex : public ImageIndex {
  public:
    // Offsets of numbers in a record: length, steps, offset uint32, label int32, height, width uint16, orientation uint8.
    struct Layout {
        size_t bytes, length, steps, height;
        size_t offset = kNone, label = kNone, width = kNone, orientation = kNone;

        static constexpr size_t kNone = SIZE_MAX;
        bool has_images() const { return offset != kNone; }
        bool fits() const;
    };

    explicit RecordIndex(const Layout& layout) : layout_(layout) {}

    void add(int64_t shard, ByteSpan records);
    void add_steps(int64_t shard, ByteSpan steps);
    void remove(int64_t shard);

    const Layout& layout() const { return layout_; }
    bool holds(int64_t shard) { return held(shard).records.data() != nullptr; }
    bool holds_steps(int64_t shard) { return held(shard).steps.data() != nullptr; }
    bool has_steps(const uint8_t* record) const;
    // Null: the shard is not held, or has no such row.
    const uint8_t* record(int64_t shard, int64_t row);
    // Of a record, whose shard's steps are held if it has any.
    BandExtent extent(int64_t shard, const uint8_t* record, int64_t top, int64_t bottom);

    bool find(int64_t shard, int64_t row, bool needs_places, IndexedImage& image) override;
    BandExtent extent(const IndexedImage& image, int64_t top, int64_t bottom) override;

  private:
    // Where the bytes of a shard are; null for what is not held.
    struct Shard {
        ByteSpan records, steps;
    };
    struct Slot {
        int64_t shard = -1;
        Shard held;
    };

    const Shard& held(int64_t shard);
    BandExtent extent(int64_t shard, uint64_t start, uint64_t length, uint32_t height, int64_t top, int64_t bottom);

    static constexpr size_t kSlots = 8192;

    Layout layout_;
    std::unordered_map<int64_t, Shard> shards_;
    // A table of plain places before the map: samples of a part lie in many shards, and each step to another piece of
    // memory takes as long as all else that is done for a sample.
    std::vector<Slot> slots_ = std::vector<Slot>(kSlots);
    std::vector<uint32_t> places_;
    const Shard none_;
};

// The values of row_places() that begin and end there, if there are as many as an image of this height has; else none.
std::span<const uint32_t> places_between(std::span<const uint32_t> all, uint64_t begin, uint64_t end, uint64_t height);

}  // namespace feeder
