#include "cuda/joined.h"

#include <algorithm>
#include <cstring>

#include "cuda/huffman.h"

namespace feeder::cuda {
namespace {

constexpr size_t aligned(size_t at) { return (at + 255) / 256 * 256; }  // as memory is read fastest

}  // namespace

// Without a plan, the view shares planes.
bool append_plan(const PlannedView& view, const ImagePlan* plan, Bytes& out) {
    JoinedBatch::Head head{};
    head.magic = JoinedBatch::kMagic;
    head.height = view.height;
    head.width = view.width;
    head.weights = view.weight_count;
    std::span<const SegmentRow> segments;
    std::span<const LineRow> lines;
    size_t padding = 0;
    if (plan != nullptr) {
        segments = plan->segments();
        lines = plan->lines();
        padding = (4 - plan->byte_count() % 4) % 4;
        head.segments = static_cast<uint32_t>(segments.size());
        head.lines = static_cast<uint32_t>(lines.size());
        head.bytes = static_cast<uint32_t>(plan->byte_count() + padding);
        head.blocks = plan->block_count();
        if (head.lines != 0) head.codebook = plan->codebook_id();
    }
    const size_t size =
        out.size() + padding + sizeof(view.image) + segments.size_bytes() + lines.size_bytes() + sizeof(head);
    if (size > out.capacity() && !out.reserve(2 * size)) return false;
    const auto append = [&](const void* from, size_t count) {
        if (count != 0) out.append(static_cast<const uint8_t*>(from), count);  // of no lines there is no address
    };
    for (size_t i = 0; i < padding; ++i) out.append(0);
    append(&view.image, sizeof(view.image));
    append(segments.data(), segments.size_bytes());
    append(lines.data(), lines.size_bytes());
    append(&head, sizeof(head));
    return true;
}

bool append_planned(const ImagePlan& plan, Bytes& out) { return append_plan(plan.views().front(), &plan, out); }
bool append_sharing(const PlannedView& view, Bytes& out) { return append_plan(view, nullptr, out); }

bool JoinedBatch::add(ByteSpan planned, uint64_t place, size_t planes) {
    Part part{planned, {}, static_cast<uint32_t>(place), 0, static_cast<uint32_t>(blocks_)};
    Head& head = part.head;
    if (planned.size() < sizeof(head) + sizeof(ImageRow)) return false;
    std::memcpy(&head, planned.data() + planned.size() - sizeof(head), sizeof(head));
    const uint64_t size = sizeof(head) + sizeof(ImageRow) + uint64_t{head.segments} * sizeof(SegmentRow) +
                          uint64_t{head.lines} * sizeof(LineRow) + head.bytes;
    if (head.magic != kMagic || size != planned.size() || head.bytes % 4 != 0 || head.segments % Huffman::kThreads != 0)
        return false;
    const bool shares = head.blocks == 0;
    if (planes > parts_.size() || shares != (planes < parts_.size())) return false;
    if (shares && (head.segments != 0 || head.lines != 0 || parts_[planes].head.blocks == 0)) return false;
    if (shares) part.first_block = parts_[planes].first_block;
    constexpr uint64_t most = uint64_t{1} << 31;
    if (blocks_ + head.blocks > most || weights_ + head.weights > most || place > UINT32_MAX || place + size > UINT32_MAX)
        return false;
    if (head.lines != 0) {
        const Codebook* const codebook = find_codebook(head.codebook);
        if (codebook == nullptr) return false;
        const auto known = std::find(codebooks_.begin(), codebooks_.end(), codebook);
        part.codebook = static_cast<uint32_t>(known - codebooks_.begin());
        if (known == codebooks_.end()) codebooks_.push_back(codebook);
    }
    segments_ += head.segments;
    lines_ += head.lines;
    bytes_end_ = std::max(bytes_end_, place + head.bytes);
    blocks_ += head.blocks;
    weights_ += head.weights;
    parts_.push_back(part);
    return true;
}

bool JoinedBatch::is_of_one_size(size_t begin, size_t end) const {
    if (begin >= end || end > parts_.size()) return false;
    const Head& first = parts_[begin].head;
    return std::all_of(parts_.begin() + static_cast<ptrdiff_t>(begin), parts_.begin() + static_cast<ptrdiff_t>(end),
                       [&](const Part& part) { return part.head.height == first.height && part.head.width == first.width; });
}

JoinedBatch::Places JoinedBatch::places() const {
    Places found{};
    found.segments = aligned(parts_.size() * sizeof(ImageRow));
    found.lines = aligned(found.segments + segments_ * sizeof(SegmentRow));
    found.codebooks = aligned(found.lines + lines_ * sizeof(LineRow));
    found.end = aligned(found.codebooks + codebooks_.size() * sizeof(CodebookRow));
    return found;
}

size_t JoinedBatch::faults_at() const { return 64 * blocks_ * sizeof(int16_t); }
size_t JoinedBatch::zeroed_bytes() const { return aligned(faults_at() + parts_.size() * sizeof(uint32_t)); }
size_t JoinedBatch::scratch_bytes() const {
    return aligned(zeroed_bytes() + weights_ * sizeof(int32_t)) + aligned(64 * blocks_);
}

void JoinedBatch::write(uint8_t* memory) const {
    const Places at = places();
    auto* image = reinterpret_cast<ImageRow*>(memory + at.images);
    auto* segment = reinterpret_cast<SegmentRow*>(memory + at.segments);
    auto* line = reinterpret_cast<LineRow*>(memory + at.lines);
    auto* codebook = reinterpret_cast<CodebookRow*>(memory + at.codebooks);
    uint32_t number = 0, blocks = 0, weights = 0;
    for (const Part& part : parts_) {
        const Head& head = part.head;
        const uint8_t* from = part.planned.data() + head.bytes;
        const auto take = [&from](void* to, size_t count) {
            std::memcpy(to, from, count);
            from += count;
        };
        take(image, sizeof(ImageRow));
        for (uint32_t& first : image->first_block) first += part.first_block;
        image->end_block = blocks + head.blocks;  // so that no block is found to be of an image that shares planes
        for (AxisRow& axis : image->axis) axis.weights += weights;
        image->codebook = part.codebook;
        take(segment, head.segments * sizeof(SegmentRow));
        for (uint32_t i = 0; i < head.segments; ++i, ++segment) {
            segment->offset += part.place;
            segment->image = number;
        }
        take(line, head.lines * sizeof(LineRow));
        for (uint32_t i = 0; i < head.lines; ++i, ++line) {
            for (uint32_t* place : {&line->shapes, &line->dc_payload, &line->payload, &line->patches}) *place += part.place;
            line->first_block += blocks;
            line->image = number;
        }
        ++image;
        ++number;
        blocks += head.blocks;
        weights += head.weights;
    }
    for (const Codebook* const each : codebooks_) *codebook++ = codebook_row(*each);
}

Batch JoinedBatch::batch(uint64_t tables, uint64_t bytes, uint64_t scratch) const {
    const Places at = places();
    Batch batch{};
    batch.images = reinterpret_cast<const ImageRow*>(tables + at.images);
    batch.segments = reinterpret_cast<const SegmentRow*>(tables + at.segments);
    batch.lines = reinterpret_cast<const LineRow*>(tables + at.lines);
    batch.codebooks = reinterpret_cast<const CodebookRow*>(tables + at.codebooks);
    batch.bytes = reinterpret_cast<const uint32_t*>(bytes);
    batch.coefficients = reinterpret_cast<int16_t*>(scratch);
    batch.faults = reinterpret_cast<uint32_t*>(scratch + faults_at());
    batch.weights = reinterpret_cast<int32_t*>(scratch + zeroed_bytes());
    batch.samples = reinterpret_cast<uint8_t*>(scratch + aligned(zeroed_bytes() + weights_ * sizeof(int32_t)));
    batch.image_count = static_cast<uint32_t>(parts_.size());
    batch.block_count = static_cast<uint32_t>(blocks_);
    batch.line_count = static_cast<uint32_t>(lines_);
    return batch;
}

Batch JoinedBatch::batch(const Batch& whole, size_t begin, size_t end) const {
    Batch part = whole;
    part.images += begin;
    part.image_count = static_cast<uint32_t>(end - begin);
    part.height = parts_[begin].head.height;
    part.width = parts_[begin].head.width;
    return part;
}

}  // namespace feeder::cuda
