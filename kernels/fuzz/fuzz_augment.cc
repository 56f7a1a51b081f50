// Any program on an image of any size: refused, or the same bytes at every SIMD level.
//
// The first bytes choose the size, the level, the output and a pattern for the pixels. Each step is then an op's number, the
// form of its values (doubles, or 16 bits times a power of two) and 11 values.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cpu/augment/program.h"
#include "cpu/simd.h"

using namespace feeder;

namespace {

constexpr size_t kChoiceBytes = 6;
constexpr size_t kMostSteps = 6;

// Takes numbers from the input, and zeros behind its end.
struct Input {
    const uint8_t* at;
    const uint8_t* end;

    uint8_t byte() { return at < end ? *at++ : uint8_t{0}; }

    double number(uint8_t form) {
        if (form == 255) {
            uint64_t bits = 0;
            for (int i = 0; i < 8; ++i) bits = bits << 8 | byte();
            double value;
            std::memcpy(&value, &bits, sizeof value);
            return value;
        }
        const int low = byte();
        return std::ldexp(static_cast<int16_t>(byte() << 8 | low), form % 2 == 0 ? 0 : form % 48 - 24);
    }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < kChoiceBytes) return 0;
    const int height = 1 + data[0] % 70, width = 1 + (data[1] | data[2] << 8) % 200;
    Input input{data + kChoiceBytes, data + size};
    std::vector<AugmentStep> steps;
    while (input.at < input.end && steps.size() < kMostSteps) {
        AugmentStep step{};
        step.op = input.byte() % (static_cast<int>(AugmentOp::count) + 1);
        const uint8_t form = input.byte();
        for (double& value : step.value) value = input.number(form);
        // One wrong step would have the others refused as well.
        steps.push_back(step);
        if (program_fault(steps, height, width) != nullptr) steps.pop_back();
    }
    if (program_fault(steps, height, width) != nullptr) std::abort();

    const size_t area = static_cast<size_t>(height) * static_cast<size_t>(width);
    std::vector<uint8_t> pixels(3 * area);
    uint32_t state = data[5];
    for (uint8_t& pixel : pixels) {
        state = state * 1664525 + 1013904223;
        pixel = static_cast<uint8_t>(data[4] % 4 == 0 ? data[5] : data[4] % 4 == 1 ? (state >> 24) % 5 * 60 : state >> 24);
    }

    static Augmenter augmenter;
    const SimdLevel levels[2] = {SimdLevel::portable, static_cast<SimdLevel>(1 + data[3] % 2)};
    const Dtype dtype = static_cast<Dtype>(data[3] / 2 % 4);
    std::vector<uint8_t> outputs[2];
    for (int i = 0; i < 2; ++i) {
        set_simd_level(levels[i]);  // where this CPU has it
        const Output image = augmenter.image(height, width);
        for (size_t c = 0; c < 3; ++c)
            std::memcpy(static_cast<uint8_t*>(image.data) + c * image.channel_elements, pixels.data() + c * area, area);
        augmenter.run(steps);
        outputs[i].resize(3 * area * dtype_bytes(dtype));
        Output out;
        out.data = outputs[i].data();
        out.dtype = dtype;
        out.layout = data[3] & 0x80 ? Layout::nhwc : Layout::nchw;
        out.channels = data[3] & 0x40 && out.layout == Layout::nchw ? 1 : 3;
        out.height = height;
        out.width = width;
        augmenter.store(out);
        erase_output(steps, out);
    }
    if (outputs[0] != outputs[1]) std::abort();
    return 0;
}
