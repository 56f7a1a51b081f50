// Plans of views as bytes, which travel from a worker to the process that has the GPU, and the batch made of them.
//
//     the plans, as they are    bytes | image | segments | lines | head, each        copied to the GPU, for their bytes
//                               image | head, of a view that shares another's planes
//     JoinedBatch::write()      images | segments | lines | codebooks                copied to the GPU
//     scratch on the GPU        coefficients | faults | weights | samples            the first two are zeros before
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/bytes.h"
#include "cpu/packed/codebook.h"
#include "cuda/batch.h"
#include "cuda/plan.h"

namespace feeder::cuda {

// Appends the plan of a group's first view: bytes, padded to words, image, segments, lines and a head, which comes last as it
// says how long they are. The plan's bytes went to `out` already, see ImagePlan::make(). False: no memory.
bool append_planned(const ImagePlan& plan, Bytes& out);
// Appends the plan of another view of the group, which shares the first one's planes. False: no memory.
bool append_sharing(const PlannedView& view, Bytes& out);

// The batch's tables are those of its plans, with each image's numbers moved behind those before it. A view is an image here.
class JoinedBatch {
  public:
    // Adds an image. `planned` must stay until write(); on the GPU it lies at `place` of the memory that has the batch's bytes.
    // Its planes are those of image `planes`: its own number, or that of an earlier one. False, and no change: not the bytes of
    // a plan, or of one that shares planes if it should not, or not if it should; with a codebook that this process does not
    // know, or one too many for 32-bit places.
    bool add(ByteSpan planned, uint64_t place, size_t planes);
    // True if images from `begin` to `end` are there, and of one output size.
    bool is_of_one_size(size_t begin, size_t end) const;

    size_t image_count() const { return parts_.size(); }
    size_t tables_bytes() const { return places().end; }
    size_t zeroed_bytes() const;  // of the scratch, from its start on
    size_t scratch_bytes() const;
    size_t faults_at() const;  // in the scratch: a uint32 for each image
    uint32_t segment_count() const { return static_cast<uint32_t>(segments_); }
    size_t codebook_count() const { return codebooks_.size(); }
    size_t bytes_end() const { return bytes_end_; }  // of the memory that has the bytes: behind the last segment or line
    size_t weight_count() const { return weights_; }

    // Writes the tables. Memory is aligned to 16 bytes; what lies between them is left as it is.
    void write(uint8_t* memory) const;
    // The batch, once the tables, the bytes and the scratch lie at these addresses, for the kernels that make the planes. The
    // others take images from `begin` to `end`, of one output size; the output is for the caller to add.
    Batch batch(uint64_t tables, uint64_t bytes, uint64_t scratch) const;
    Batch batch(const Batch& whole, size_t begin, size_t end) const;

  private:
    struct Head {
        uint32_t magic;
        uint32_t height, width;
        uint32_t segments, lines, bytes;  // bytes is a multiple of 4
        uint32_t blocks, weights;
        CodebookId codebook;
    };
    static_assert(sizeof(Head) % 4 == 0);
    struct Part {
        ByteSpan planned;
        Head head;
        uint32_t place;
        uint32_t codebook;
        uint32_t first_block;
    };
    struct Places {
        size_t images, segments, lines, codebooks, end;
    };
    // Behind its bytes a plan has what the kernels may read there, and of plans back to back all bytes begin at words.
    static_assert(sizeof(ImageRow) >= kBytesPadding && sizeof(ImageRow) % 4 == 0 && sizeof(LineRow) % 4 == 0);
    static constexpr uint32_t kMagic = 0x31504346;  // "FCP1"
    friend bool append_plan(const PlannedView& view, const ImagePlan* plan, Bytes& out);

    Places places() const;

    std::vector<Part> parts_;
    std::vector<const Codebook*> codebooks_;
    uint64_t segments_ = 0, lines_ = 0, bytes_end_ = 0, blocks_ = 0, weights_ = 0;
};

}  // namespace feeder::cuda
