// One image, or a batch of them, from encoded bytes to the caller's output.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu/augment/program.h"
#include "cpu/bytes.h"
#include "cpu/image.h"
#include "cpu/jpeg/baseline.h"
#include "cpu/jpeg/cut.h"
#include "cpu/jpeg/libjpeg_decode.h"
#include "cpu/jpeg/planes.h"
#include "cpu/packed/packed_decoder.h"
#include "cpu/png.h"
#include "cpu/resize/resize.h"
#include "cpu/resize/store.h"
#include "cpu/stage_times.h"
#include "cpu/status.h"
#include "cpu/view_groups.h"

namespace feeder {

// The part of an output that the source box maps onto; what is beside it gets one color.
struct FramedPart {
    int left = 0;  // -1: the crop was larger than the image, which is then corrupt
    int top = 0;
    int width = -1;  // -1: all of the output
    int height = -1;
    uint8_t fill[3] = {};

    bool is_all() const { return width < 0; }
};

// An output that is made of an image. Boxes are in upright pixels (after orientation), as resample() takes them.
struct View {
    double source_box[4] = {};  // left, top, right, bottom
    int support_box[4] = {};
    bool flip = false;
    ResizeFilter filter = ResizeFilter::bilinear;
    FramedPart part;  // inside the output
    Program program;  // what follows, without faults for the output's size
    Output out;

    // Of the resized image; 1 where nothing of it is left.
    int height() const { return part.is_all() ? out.height : std::max(part.height, 1); }
    int width() const { return part.is_all() ? out.width : std::max(part.width, 1); }
};

// One encoded image, a JPEG, packed JPEG, PNG or .npy array, and its views. Views that lie close together are decoded together,
// see group_views(); their pixels are those of one view alone.
//
// Of a seekable or packed JPEG, the header and the MCU rows of the support boxes are enough. The rows then begin at pixel
// row `first_row`, with the marker before it (the image's first row has none; of a packed JPEG it is the two bytes before),
// and end with the marker after the last one. If they can't be decoded, the image counts as corrupt; decoding the whole file then gives the reason.
struct ImageJob {
    ByteSpan file;
    int first_row = kWhole;
    int image_height = 0;  // upright size of the image for which the boxes were drawn; 0: not checked
    int image_width = 0;
    int orientation = 1;  // EXIF, 1-8
    std::span<const View> views;

    static constexpr int kWhole = -1;
    bool is_whole() const { return first_row == kWhole; }
};

struct DecodeOptions {
    Fidelity fidelity = Fidelity::fast;
    int64_t max_pixels = 0;  // of the whole stored image; 0: no limit
};

// Decodes one image after the other and keeps its buffers. One per thread. Earlier images never affect pixels.
class ImageDecoder {
  public:
    Outcome decode(const ImageJob& job, const DecodeOptions& options, StageTimes* times = nullptr);

  private:
    Outcome decode_views(const ImageJob& job, const DecodeOptions& options, StageTimes* times);
    Outcome decode_npy(const ImageJob& job, const DecodeOptions& options);
    Outcome decode_png(const ImageJob& job, const DecodeOptions& options, StageTimes* times);
    Outcome decode_jpeg(const ImageJob& job, const JpegHeader& header, const ViewGroup& group, Planes& planes,
                        StageTimes* times);
    Outcome decode_cut(const JpegHeader& header, const ViewGroup& group, const CutPlace& place, Planes& planes,
                       McuSource* source = nullptr);
    Outcome decode_packed(const PackedFile& file, const Codebook& codebook, const ViewGroup& group, Planes& planes,
                          StageTimes* times);
    void store(const ImageJob& job, const Planes& planes, size_t view, StageTimes* times);
    void resample_into(const ImageJob& job, const Planes& planes, const View& view, const Output& out);

    BaselineDecoder baseline_;
    PackedDecoder packed_;
    PngDecoder png_;
    Bytes cut_;
    Bytes pixels_;
    std::vector<Segment> segments_;
    std::vector<View> views_;  // of the image at work; each support box narrowed to what the filter reads
    std::vector<ViewNeed> needs_;
    std::vector<ViewGroup> groups_;
    Scratch scratch_;
    Augmenter augmenter_;
    int64_t transform_ns_ = 0;
};

// Decodes every job on `threads` threads, including the calling one. One Outcome per job; a bad image affects no other.
void decode_all(std::span<const ImageJob> jobs, const DecodeOptions& options, int threads, std::span<Outcome> outcomes);

}  // namespace feeder
