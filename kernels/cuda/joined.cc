#include "cuda/joined.h"

#include <algorithm>
#include <cstring>

#include "cuda/huffman.h"

namespace feeder::cuda {
namespace {

constexpr size_t aligned(size_t at) { return (at + 255) / 256 * 256; }  // as memory is read fastest

}  // namespace

bool append_planned(const ImagePlan& plan, Bytes& out) {
    const ImageRow& image = plan.image();
    const size_t bytes = plan.byte_count();
    JoinedBatch::Head head{};
    head.magic = JoinedBatch::kMagic;
    head.height = plan.height();
    head.width = plan.width();
    head.segments = static_cast<uint32_t>(plan.segments().size());
    head.lines = static_cast<uint32_t>(plan.lines().size());
    head.bytes = static_cast<uint32_t>((bytes + 3) / 4 * 4);
    head.blocks = plan.block_count();
    head.weights = plan.weight_count();
    if (head.lines != 0) head.codebook = plan.codebook_id();
    const size_t tables = sizeof(image) + plan.segments().size_bytes() + plan.lines().size_bytes() + sizeof(head);
    const size_t size = out.size() + head.bytes - bytes + tables;
    if (size > out.capacity() && !out.reserve(2 * size)) return false;
    const auto append = [&](const void* from, size_t count) {
        if (count != 0) out.append(static_cast<const uint8_t*>(from), count);  // of no lines there is no address
    };
    for (size_t i = bytes; i < head.bytes; ++i) out.append(0);
    append(&image, sizeof(image));
    append(plan.segments().data(), plan.segments().size_bytes());
    append(plan.lines().data(), plan.lines().size_bytes());
    append(&head, sizeof(head));
    return true;
}

bool JoinedBatch::add(ByteSpan planned, uint64_t place) {
    Part part{planned, {}, static_cast<uint32_t>(place), 0};
    Head& head = part.head;
    if (planned.size() < sizeof(head) + sizeof(ImageRow)) return false;
    std::memcpy(&head, planned.data() + planned.size() - sizeof(head), sizeof(head));
    const uint64_t size = sizeof(head) + sizeof(ImageRow) + uint64_t{head.segments} * sizeof(SegmentRow) +
                          uint64_t{head.lines} * sizeof(LineRow) + head.bytes;
    if (head.magic != kMagic || size != planned.size() || head.bytes % 4 != 0 || head.segments % Huffman::kThreads != 0)
        return false;
    if (!parts_.empty() && (head.height != parts_[0].head.height || head.width != parts_[0].head.width)) return false;
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
        for (uint32_t& first : image->first_block) first += blocks;
        image->end_block += blocks;
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
    batch.height = parts_.empty() ? 0 : parts_[0].head.height;
    batch.width = parts_.empty() ? 0 : parts_[0].head.width;
    return batch;
}

}  // namespace feeder::cuda
