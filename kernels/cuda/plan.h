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

// Plans one image after the other, and keeps its memory. One per thread.
class ImagePlan {
  public:
    ImagePlan() = default;
    ImagePlan(const ImagePlan&) = delete;
    ImagePlan& operator=(const ImagePlan&) = delete;

    // Plans an image with one view, whose output says nothing: it is height x width. Its bytes go behind what `bytes` has.
    // False, and `bytes` as before: it is left to the CPU, and to the CPU's verdict. These are files of kinds that the
    // kernels lack, and files that are not perfect as far as the host looks: it reads headers, finds markers and sums up
    // lengths, but decodes nothing.
    bool make(const ImageJob& job, uint32_t height, uint32_t width, Bytes& bytes);

    // Of the image that was planned last. Its blocks, weights and bytes are numbered from 0 on.
    const ImageRow& image() const { return image_; }
    std::span<const SegmentRow> segments() const { return segments_; }  // a multiple of Huffman::kThreads
    std::span<const LineRow> lines() const { return lines_; }
    const CodebookId& codebook_id() const { return codebook_id_; }  // if it was packed
    size_t byte_count() const { return byte_count_; }
    uint32_t height() const { return height_; }
    uint32_t width() const { return width_; }
    uint32_t block_count() const { return image_.end_block; }
    uint32_t weight_count() const { return weight_count_; }

  private:
    bool add_image(const ImageJob& job, Bytes& bytes);
    bool add_geometry(const ImageJob& job, const JpegHeader& header, ByteSpan tables);
    bool add_axes(const ImageJob& job, const Planes& planes, const int support_box[4]);
    bool add_codes(ByteSpan file, const JpegHeader& header);
    bool add_segments(const ImageJob& job, const JpegHeader& header, Bytes& bytes);
    bool add_lines(const PackedFile& file, const Codebook& codebook, Bytes& bytes);
    uint8_t* add_bytes(size_t count, Bytes& bytes);  // nullptr: no memory, or more than 4 GiB

    uint32_t height_ = 0, width_ = 0;
    ImageRow image_{};
    std::vector<SegmentRow> segments_;
    std::vector<LineRow> lines_;
    CodebookId codebook_id_{};
    size_t byte_count_ = 0;
    uint32_t weight_count_ = 0;

    feeder::HuffmanCodes checked_[2][4];  // codes found valid, by class and number in the file
    std::vector<Segment> found_;
    std::vector<PackedLine> packed_lines_;
};

}  // namespace feeder::cuda
