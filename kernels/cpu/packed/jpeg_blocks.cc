#include "cpu/packed/jpeg_blocks.h"

#include <new>

#include "cpu/jpeg/baseline.h"
#include "cpu/jpeg/segments.h"
#include "cpu/packed/packed_file.h"

namespace feeder {

Outcome packable(ByteSpan file, int64_t max_pixels, JpegHeader& header) {
    Outcome outcome = parse_jpeg_header(file, header);
    if (!outcome.ok()) return outcome;
    if (const char* kind = unpackable_kind(header)) return {Status::unsupported, kind};
    if (max_pixels > 0 && static_cast<int64_t>(header.width) * header.height > max_pixels)
        return {Status::unsupported, "too large"};
    return {};
}

JpegBlocks::JpegBlocks() : decoder_(std::make_unique<BaselineDecoder>()) {}
JpegBlocks::~JpegBlocks() = default;

int64_t JpegBlocks::read(ByteSpan file, const JpegHeader& header) {
    const McuGrid grid = mcu_grid(header);
    size_t blocks = 0;
    for (int i = 0; i < header.components; ++i) blocks += size_t{header.component[i].h} * header.component[i].v;
    if (header.components == 1) blocks = 1;
    blocks *= static_cast<size_t>(grid.columns) * static_cast<size_t>(grid.rows);
    // Each takes two bits or more: a header of a few bytes may claim gigabytes.
    if (blocks / 4 > file.size()) return -1;
    constexpr size_t kAlignment = alignof(OrderedBlock);
    if (!storage_.reserve(blocks * sizeof(OrderedBlock) + kAlignment)) throw std::bad_alloc();
    const uintptr_t begin = reinterpret_cast<uintptr_t>(storage_.data()) + kAlignment - 1;
    blocks_ = reinterpret_cast<OrderedBlock*>(begin - begin % kAlignment);
    return decoder_->read_coefficients(file, header, blocks_->coefficients);
}

}  // namespace feeder
