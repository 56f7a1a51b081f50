// The host's part of a batch: from encoded files and boxes to the rows and bytes that the kernels take.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpu/decode.h"
#include "cpu/jpeg/huffman.h"
#include "cpu/packed/packed_file.h"
#include "cpu/view_groups.h"
#include "cuda/batch.h"

namespace feeder::cuda {

CodebookRow codebook_row(const Codebook& codebook);

// A view as the kernels take it: its row, numbered as in a batch of this image alone, and its output's size.
struct PlannedView {
    ImageRow image{};
    uint32_t height = 0, width = 0;
    uint32_t weight_count = 0;
};

// Plans one image after the other, and keeps its memory. One per thread.
class ImagePlan {
  public:
    ImagePlan() = default;
    ImagePlan(const ImagePlan&) = delete;
    ImagePlan& operator=(const ImagePlan&) = delete;

    // Begins an image, whose file must stay; of its views' outputs only the size counts. False: it is left to the CPU, and to
    // the CPU's verdict. These are files of kinds that the kernels lack, and files that are not perfect as far as the host
    // looks: it reads headers, finds markers and sums up lengths, but decodes nothing.
    bool open(const ImageJob& job);
    // Views of the image that are decoded together, in ascending order. Those of fidelity "exact" have boxes of so few pixels
    // that the CPU gives others, see kFewPixels.
    const std::vector<ViewGroup>& groups() const { return groups_; }
    // Plans one of these groups. The bytes of its segments or lines go behind what `bytes` has. False, and `bytes` as before:
    // it is left to the CPU.
    bool make(const ViewGroup& group, Bytes& bytes);

    // Of the group that was planned last. Its blocks and bytes are numbered from 0 on, as are each view's weights.
    std::span<const PlannedView> views() const { return planned_; }
    std::span<const SegmentRow> segments() const { return segments_; }  // a multiple of Huffman::kThreads
    std::span<const LineRow> lines() const { return lines_; }
    const CodebookId& codebook_id() const { return codebook_id_; }  // if it was packed
    size_t byte_count() const { return byte_count_; }
    uint32_t block_count() const { return image_.end_block; }

  private:
    bool open_header();
    bool add_group(const ViewGroup& group, Bytes& bytes);
    bool add_geometry(const ViewGroup& group);
    bool add_view(const View& view, const Planes& planes);
    bool add_codes();
    bool add_segments(Bytes& bytes);
    bool add_lines(Bytes& bytes);
    uint8_t* add_bytes(size_t count, Bytes& bytes);  // nullptr: no memory, or more than 4 GiB

    ImageJob job_;
    bool is_packed_ = false;
    PackedFile packed_;
    const Codebook* codebook_ = nullptr;
    JpegHeader header_;
    ColorModel color_ = ColorModel::ycbcr;
    std::vector<View> views_;
    std::vector<ViewNeed> needs_;
    std::vector<ViewGroup> groups_;

    std::vector<PlannedView> planned_;
    ImageRow image_{};  // what all views of the group have in common
    std::vector<SegmentRow> segments_;
    std::vector<LineRow> lines_;
    CodebookId codebook_id_{};
    size_t byte_count_ = 0;

    feeder::HuffmanCodes checked_[2][4];  // codes found valid, by class and number in the file
    std::vector<Segment> found_;
    std::vector<PackedLine> packed_lines_;
};

}  // namespace feeder::cuda
