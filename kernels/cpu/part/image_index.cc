#include "cpu/part/image_index.h"

#include <algorithm>
#include <cstring>

namespace feeder {
namespace {

constexpr uint32_t kNoSteps = UINT32_MAX;
constexpr uint16_t kEscape = 0xFFFF;
// Values that rows need beside one for each band: height and header before them, a margin and an end behind.
constexpr size_t kFurther = 6;

template <typename T>
T number_at(const uint8_t* bytes) {
    T number;
    std::memcpy(&number, bytes, sizeof(T));
    return number;
}

// Reads one image's values of row_places(): uint16, the height of a band, the offset of the first one, and the
// difference of each other value to the one before it. 0xFFFF: the number is in the next two, its low half first.
// False if they run past the end. Values that rows up to `bottom` do not need are zeros.
bool read_steps(ByteSpan steps, uint64_t start, uint64_t height, int64_t bottom, std::vector<uint32_t>& places) {
    uint64_t at = 2 * start;
    size_t count = 1, needed = 1;
    while (places.size() < needed) {
        if (at + 2 > steps.size()) return false;
        uint32_t step = number_at<uint16_t>(steps.data() + at);
        at += 2;
        if (step == kEscape) {
            if (at + 4 > steps.size()) return false;
            step = number_at<uint32_t>(steps.data() + at);
            at += 4;
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

}  // namespace

bool RecordIndex::Layout::fits() const {
    if (bytes < 4 || std::max(length, steps) > bytes - 4 || height > bytes - 2) return false;
    return !has_images() || (std::max(offset, label) <= bytes - 4 && width <= bytes - 2 && orientation < bytes);
}

void RecordIndex::add(int64_t shard, ByteSpan records) {
    slots_[static_cast<uint64_t>(shard) % kSlots].shard = -1;
    shards_[shard].records = records;
}

void RecordIndex::add_steps(int64_t shard, ByteSpan steps) {
    slots_[static_cast<uint64_t>(shard) % kSlots].shard = -1;
    shards_[shard].steps = steps;
}

void RecordIndex::remove(int64_t shard) {
    slots_[static_cast<uint64_t>(shard) % kSlots].shard = -1;
    shards_.erase(shard);
}

const RecordIndex::Shard& RecordIndex::held(int64_t shard) {
    Slot& slot = slots_[static_cast<uint64_t>(shard) % kSlots];
    if (slot.shard == shard && shard >= 0) return slot.held;
    const auto found = shards_.find(shard);
    if (found == shards_.end()) return none_;
    slot = {shard, found->second};
    return slot.held;
}

bool RecordIndex::has_steps(const uint8_t* record) const {
    return number_at<uint32_t>(record + layout_.steps) < kNoSteps;
}

const uint8_t* RecordIndex::record(int64_t shard, int64_t row) {
    const ByteSpan records = held(shard).records;
    if (records.data() == nullptr || static_cast<uint64_t>(row) >= records.size() / layout_.bytes) return nullptr;
    return records.data() + static_cast<uint64_t>(row) * layout_.bytes;
}

BandExtent RecordIndex::extent(int64_t shard, uint64_t start, uint64_t length, uint32_t height, int64_t top,
                               int64_t bottom) {
    places_.clear();
    if (start < kNoSteps && !read_steps(held(shard).steps, start, height, bottom, places_)) places_.clear();
    return band_extent(places_, static_cast<int64_t>(length), top, bottom, worth_bytes);
}

BandExtent RecordIndex::extent(int64_t shard, const uint8_t* record, int64_t top, int64_t bottom) {
    return extent(shard, number_at<uint32_t>(record + layout_.steps), number_at<uint32_t>(record + layout_.length),
                  number_at<uint16_t>(record + layout_.height), top, bottom);
}

bool RecordIndex::find(int64_t shard, int64_t row, bool needs_places, IndexedImage& image) {
    const bool is_held = needs_places ? holds_steps(shard) : holds(shard);
    const uint8_t* const found = layout_.has_images() && is_held ? record(shard, row) : nullptr;
    if (found == nullptr) return false;
    image.shard = shard;
    image.offset = number_at<uint32_t>(found + layout_.offset);
    image.length = number_at<uint32_t>(found + layout_.length);
    image.width = number_at<uint16_t>(found + layout_.width);
    image.height = number_at<uint16_t>(found + layout_.height);
    image.label = number_at<int32_t>(found + layout_.label);
    image.places = number_at<uint32_t>(found + layout_.steps);
    image.orientation = found[layout_.orientation];
    return true;
}

BandExtent RecordIndex::extent(const IndexedImage& image, int64_t top, int64_t bottom) {
    return extent(image.shard, image.places, image.length, image.height, top, bottom);
}

std::span<const uint32_t> places_between(std::span<const uint32_t> all, uint64_t begin, uint64_t end, uint64_t height) {
    if (begin >= end || end > all.size()) return {};
    const std::span<const uint32_t> places = all.subspan(begin, end - begin);
    const bool covers =
        places.size() >= 3 && places[0] != 0 && (height + places[0] - 1) / places[0] == places.size() - 2;
    return covers ? places : std::span<const uint32_t>{};
}

}  // namespace feeder
