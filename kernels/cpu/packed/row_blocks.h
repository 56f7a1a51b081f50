// The coefficients of a row of MCUs of a packed JPEG, or of a part of it.
#pragma once

#include <vector>

#include "cpu/packed/packed_decoder.h"
#include "cpu/packed/packed_file.h"

namespace feeder {

class RowBlocks {
  public:
    // The memory for rows of so many MCUs.
    void reserve(const PackedFile& file, int columns) {
        columns_ = columns;
        size_t count = 0;
        for (int i = 0; i < file.header().components; ++i) {
            const JpegComponent& component = file.header().component[i];
            count += static_cast<size_t>(columns) * component.h * component.v;
        }
        blocks_.resize(count);
    }

    int columns() const { return columns_; }
    size_t block_count() const { return blocks_.size(); }

    // False: damaged.
    bool read(const PackedFile& file, const Codebook& codebook, int row, int first_column) {
        if (!file.read_row(row, codebook, lines_)) return false;
        size_t at = 0;
        for (const PackedLine& line : lines_) {
            const int h = file.header().component[line.component].h;
            const int first = first_column * h, end = (first_column + columns_) * h;
            unpack_line(line, codebook.of_component(line.component), first, end, file.end(), dc_,
                        reinterpret_cast<int16_t(*)[64]>(blocks_.data() + at));
            at += static_cast<size_t>(end - first);
        }
        return true;
    }

    // Calls take(component, coefficients in zigzag order) for the blocks of MCU number `column` of those that were read, in the
    // order of a scan, until it returns false.
    template <typename Take>
    FEEDER_INLINE bool each_block(const JpegHeader& header, int column, const Take& take) const {
        const Block* line = blocks_.data();
        for (int i = 0; i < header.components; ++i) {
            const JpegComponent& component = header.component[i];
            for (int v = 0; v < component.v; ++v, line += columns_ * component.h) {
                for (int h = 0; h < component.h; ++h)
                    if (!take(i, line[column * component.h + h].coefficients)) return false;
            }
        }
        return true;
    }

  private:
    struct alignas(64) Block {
        int16_t coefficients[64];
    };

    int columns_ = 0;
    std::vector<PackedLine> lines_;
    std::vector<int16_t> dc_;
    std::vector<Block> blocks_;
};

}  // namespace feeder
