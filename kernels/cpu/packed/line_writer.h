// The bytes of a line of blocks in a packed JPEG. See docs/packed-format.md.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/packed/codebook.h"
#include "cpu/packed/shape_choice.h"

namespace feeder {

// Keeps buffers; one per thread.
class LineWriter {
  public:
    // Appends a line of `count` blocks, and makes their DC coefficients 0: `h` neighbours from `first` on, then `h` of them
    // `per_mcu` blocks further on, and so on. Returns nullptr, or why they can't be packed.
    const char* append(const ShapeTable& table, OrderedBlock* first, int count, int h, int per_mcu,
                       std::vector<uint8_t>& out);

  private:
    // Adds a patch if a number needs one. False: it is too large for that.
    bool patch(int block, int index, int number, int width);

    std::vector<OrderedBlock*> blocks_;
    std::vector<ShapeChoice> choices_;
    std::vector<uint8_t> shapes_, dc_codes_, dc_patched_, payload_, patches_;
    std::vector<int> differences_;
};

}  // namespace feeder
