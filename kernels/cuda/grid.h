// How many blocks of threads each kernel takes for a batch.
#pragma once

#include "cuda/batch.h"
#include "cuda/filters.h"
#include "cuda/huffman.h"
#include "cuda/idct.h"
#include "cuda/resize.h"
#include "cuda/unpack.h"

namespace feeder::cuda {

struct Grid {
    uint32_t huffman, unpack, idct, filters, resize;

    Grid(const Batch& batch, uint32_t segments)
        : huffman(segments / Huffman::kThreads),
          unpack(batch.line_count),
          idct((batch.block_count + InverseDct::kBlocks - 1) / InverseDct::kBlocks),
          filters(batch.image_count * 2 * kComponents * Filters::tiles(batch)),
          resize(batch.image_count * Resize::tiles(batch)) {}
};

}  // namespace feeder::cuda
