// The memory of a batch, as the host lays it out and the kernels find it.
//
//     images      what a kernel has to know of each image
//     segments    a row for each restart segment that an image needs (JPEG)
//     lines       a row for each line of blocks that an image needs (packed JPEG)
//     bytes       the segments or lines themselves
//     coefficients, samples, weights, out: written by the kernels
//
// The blocks of an image are numbered through its window of MCUs: component after component, row by row. Block b of the
// batch has its coefficients at 64 * b. A component's samples are a plane as wide as its blocks, at 64 times its first block.
#pragma once

#include <stdint.h>

#include "cuda/device.h"

namespace feeder::cuda {

inline constexpr int kComponents = 3;
inline constexpr int kHuffmanTables = 4;
inline constexpr uint32_t kBytesPadding = 16;  // readable behind the last byte of a batch

// Why the CPU has to decode an image; 0 if it need not.
enum Fault : uint32_t {
    kBadCode = 1,    // a Huffman code that does not exist, or coefficients beyond a block's end
    kBadLength = 2,  // a segment with too few or too many bytes, or with a marker inside
    kBadLevel = 4,   // a DC coefficient that no encoder writes
    kUnusual = 8,    // levels for which libjpeg's inverse DCT has a branch of its own
};

// One restart segment. The rows of an image fill up blocks of threads: rows without bytes are left out.
struct SegmentRow {
    uint32_t offset;     // of its first byte
    uint32_t length;     // stuffed bytes, without the marker behind them
    uint32_t first_mcu;  // in the whole image
    uint32_t image;
};
static_assert(sizeof(SegmentRow) == 16);

// One line of a packed JPEG (docs/packed-format.md), checked by the host. Offsets are into the bytes.
struct LineRow {
    uint32_t shapes;
    uint32_t dc_payload;
    uint32_t payload;
    uint32_t patches;
    uint32_t patch_count;
    uint32_t first_block;  // of the batch, for the line's first block inside the window
    uint32_t image;
    uint32_t component;
};

// The payload of a DHT segment.
struct HuffmanPayload {
    uint8_t counts[16];
    uint8_t values[256];
};

// The shapes of a packed JPEG's codebook: of luma, of chroma.
struct CodebookRow {
    uint8_t codes[2][256][8];  // of the width of each group
    uint8_t bytes[2][256];     // of a block's payload
};

// A resize along one axis, in the terms of cpu/resize/axis_tables.h. x is 0, y is 1.
struct AxisRow {
    struct Component {
        int32_t replicate, factor, smooth, samples;
    };
    Component component[kComponents];
    float in0, in1;
    int32_t in_size;
    int32_t base;
    int32_t mirrored;
    int32_t taps;      // weights of an output, at most
    uint32_t weights;  // where its tables are: for each component first[outputs], count[outputs], weight[taps, outputs]
};

struct ImageRow {
    uint32_t first_block[kComponents];
    uint32_t end_block;
    uint32_t block_columns[kComponents];  // of the window
    uint8_t h[kComponents];               // blocks of an MCU
    uint8_t v[kComponents];
    uint8_t dc_table[kComponents];
    uint8_t ac_table[kComponents];
    uint32_t components;
    uint32_t exact;       // 1: planes of full resolution, resized as Pillow does it; 0: YCbCr
    uint32_t transposed;  // 1: a row of the output is a column as stored
    uint32_t flip;        // 1: mirror the output
    uint32_t interval;    // MCUs in a segment
    uint32_t mcus;        // of the whole image, as are the columns
    uint32_t mcu_columns;
    uint32_t first_row, end_row, first_column, end_column;  // the window, in MCUs
    uint32_t codebook;
    AxisRow axis[2];
    uint16_t quant[kComponents][64];  // in natural order
    HuffmanPayload codes[kHuffmanTables];
};

enum OutputType : uint32_t { kUint8, kFloat32, kFloat16, kBfloat16 };

struct Batch {
    const ImageRow* images;
    const SegmentRow* segments;
    const LineRow* lines;
    const CodebookRow* codebooks;
    const uint32_t* bytes;  // of which each word holds four
    int16_t* coefficients;  // zeros before
    uint8_t* samples;
    int32_t* weights;
    uint32_t* faults;  // of each image, zeros before
    void* out;         // [images, 3, height, width], or channels last
    uint32_t image_count;
    uint32_t block_count;
    uint32_t line_count;
    uint32_t height, width;
    uint32_t type;  // OutputType
    uint32_t channels_last;
    float scale[3], bias[3];  // out = pixel * scale + bias; unused for uint8
};

// The image that a block of the batch belongs to.
FEEDER_DEVICE uint32_t image_of_block(const Batch& batch, uint32_t block) {
    uint32_t low = 0, high = batch.image_count - 1;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (batch.images[middle].end_block > block) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

}  // namespace feeder::cuda
