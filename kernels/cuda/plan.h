// The host's part of a batch: from encoded files and boxes to the rows and bytes that the kernels take.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpu/decode.h"
#include "cpu/jpeg/huffman.h"
#include "cpu/packed/packed_file.h"
#include "cuda/batch.h"

namespace feeder::cuda {

CodebookRow codebook_row(const Codebook& codebook);

// Grows image by image, and keeps its memory from batch to batch. One per thread.
class BatchPlan {
  public:
    // Outputs are height x width.
    BatchPlan(uint32_t height, uint32_t width) : height_(height), width_(width) {}
    BatchPlan(const BatchPlan&) = delete;
    BatchPlan& operator=(const BatchPlan&) = delete;

    // Adds an image with one view, whose output says nothing. False, and no change: it is left to the CPU, and to the
    // CPU's verdict. These are files of kinds that the kernels lack, and files that are not perfect as far as the host
    // looks: it reads headers, finds markers and sums up lengths, but decodes nothing.
    bool add(const ImageJob& job);
    void clear();
    // Begins another batch, of outputs of another size, and keeps the codebooks. Its bytes go behind what `bytes` has; null:
    // to memory of the plan's own.
    void begin(uint32_t height, uint32_t width, Bytes* bytes = nullptr);

    std::span<const ImageRow> images() const { return images_; }
    std::span<const SegmentRow> segments() const { return segments_; }  // a multiple of Huffman::kThreads
    std::span<const LineRow> lines() const { return lines_; }
    std::span<const CodebookRow> codebooks() const { return codebooks_; }
    // The bytes, four in each word, and padding.
    std::span<const uint32_t> words() const {
        const size_t size = bytes_->size() - base_;
        return {reinterpret_cast<const uint32_t*>(bytes_->data() + base_), size == 0 ? 0 : (size + kBytesPadding) / 4};
    }
    size_t byte_count() const { return bytes_->size() - base_; }
    // The codebook of an image that was packed.
    const CodebookId& codebook_id(const ImageRow& image) const { return codebook_ids_[image.codebook]; }
    uint32_t height() const { return height_; }
    uint32_t width() const { return width_; }
    uint32_t block_count() const { return block_count_; }
    uint32_t weight_count() const { return weight_count_; }

    // The batch with what the host wrote; nothing that the kernels write has a place yet.
    Batch batch() const;

  private:
    bool add_image(const ImageJob& job);
    bool add_geometry(const ImageJob& job, const JpegHeader& header, ByteSpan tables, ImageRow& row);
    bool add_axes(const ImageJob& job, const Planes& planes, const int support_box[4], ImageRow& row);
    bool add_codes(ByteSpan file, const JpegHeader& header, ImageRow& row);
    bool add_segments(const ImageJob& job, const JpegHeader& header, const ImageRow& row);
    bool add_lines(const PackedFile& file, const ImageRow& row);
    bool add_codebook(const CodebookId& id, const Codebook& codebook, ImageRow& row);
    uint8_t* add_bytes(size_t count);  // nullptr: no memory, or more than 4 GiB

    uint32_t height_, width_;
    std::vector<ImageRow> images_;
    std::vector<SegmentRow> segments_;
    std::vector<LineRow> lines_;
    std::vector<CodebookRow> codebooks_;
    std::vector<CodebookId> codebook_ids_;
    Bytes own_bytes_;
    Bytes* bytes_ = &own_bytes_;
    size_t base_ = 0;  // where the batch's bytes begin
    uint32_t block_count_ = 0;
    uint32_t weight_count_ = 0;

    feeder::HuffmanCodes checked_[2][4];  // codes found valid, by class and number in the file
    std::vector<Segment> found_;
    std::vector<PackedLine> packed_lines_;
};

}  // namespace feeder::cuda
