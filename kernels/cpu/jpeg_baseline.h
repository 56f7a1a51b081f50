// Our own decoder for the common case: Huffman-coded sequential JPEG of 8 bits in one scan, straight to planes.
#pragma once

#include <memory>
#include <vector>

#include "bytes.h"
#include "huffman.h"
#include "image.h"
#include "jpeg_header.h"
#include "jpeg_planes.h"
#include "jpeg_segments.h"
#include "stage_times.h"

namespace feeder {

enum class Block : uint8_t { dc_only, has_ac, bad };

// Decodes only the restart segments that hold something of the box, of those only up to the last MCU needed, and does
// the inverse DCT (libjpeg-turbo's, so pixels are the same) only of what is inside. It gives up on everything unusual:
// the caller then asks libjpeg, which has the last word on damaged files. Keeps tables and buffers; one per thread.
class BaselineDecoder {
  public:
    BaselineDecoder();
    ~BaselineDecoder();
    BaselineDecoder(const BaselineDecoder&) = delete;
    BaselineDecoder& operator=(const BaselineDecoder&) = delete;

    // True: `planes` point into `pixels`. False: another kind of JPEG, a damaged one, or no memory.
    bool decode(ByteSpan file, const JpegHeader& header, const PixelBox& box, Bytes& pixels, Planes& planes,
                StageTimes* times = nullptr);

  private:
    static constexpr int kMaxBlocks = 10;  // in an MCU, by the standard
    struct InverseDct;
    struct Window;

    bool build_tables(ByteSpan file, const JpegHeader& header);
    bool decode_segment(const JpegHeader& header, const Window& window, int first_mcu, int end_mcu, bool may_have_rest,
                        const Planes& planes, Lap& lap);
    void make_pixels(const JpegHeader& header, int16_t (*block)[64], const Block* kind, uint8_t* (*rows)[32],
                     int mcu_column);

    std::unique_ptr<InverseDct> idct_;
    HuffmanTable dc_tables_[4];
    HuffmanTable ac_tables_[4];
    int16_t quant_[4][64];  // in natural order
    std::vector<Segment> segments_;
    Bytes unstuffed_;
    size_t unstuffed_bits_ = 0;
};

}  // namespace feeder
