// The emulated kernels for Python, by ctypes: tests/kernels/test_cuda.py compiles this file and what it needs.
#include <cstring>
#include <stdexcept>

#include "cpu/boxes.h"
#include "cpu/jpeg/planes.h"
#include "cuda/emulate.h"

using namespace feeder;
using namespace feeder::cuda;

extern "C" {

struct Request {
    const uint8_t* file;
    uint64_t length;
    double source_box[4];
    int32_t support_box[4];
    int32_t first_row;
    int32_t orientation;
    int32_t flip;
};

int feeder_add_codebook(const uint8_t* id, const uint8_t* bytes, uint64_t length) {
    CodebookId known;
    std::memcpy(known.data(), id, known.size());
    return add_codebook(known, {bytes, length});
}

// Decodes a batch. `taken` gets 1 for each image that the kernels decoded, without a fault; `faults` the fault of the others,
// 0 where the host left them to the CPU. `out` holds the images of all requests. `planes`, if not null, gets the first image's
// samples of its support box, component after component, and `shapes` their [rows, columns]. Returns 0; 1: orders of threads
// differ; 2: a plan can't be joined.
int feeder_emulate(const Request* requests, int count, uint32_t height, uint32_t width, uint32_t type,
                   uint32_t channels_last, const float* scale, const float* bias, uint8_t* taken, uint32_t* faults,
                   uint8_t* out, uint8_t* planes, int32_t* shapes) {
    ImagePlan plan;
    Bytes plans;
    ImageRow first{};  // of the images added
    std::vector<int> added;
    std::vector<size_t> ends{0};
    for (int i = 0; i < count; ++i) {
        const Request& request = requests[i];
        View view;
        std::memcpy(view.source_box, request.source_box, sizeof(view.source_box));
        std::memcpy(view.support_box, request.support_box, sizeof(view.support_box));
        view.flip = request.flip != 0;
        ImageJob job;
        job.file = {request.file, static_cast<size_t>(request.length)};
        job.first_row = request.first_row;
        job.orientation = request.orientation;
        view.out.height = static_cast<int>(height);
        view.out.width = static_cast<int>(width);
        job.views = {&view, 1};
        taken[i] = 0;
        faults[i] = 0;
        if (!plan.open(job) || !plan.make(plan.groups().front(), plans) || !append_planned(plan, plans)) continue;
        if (added.empty()) first = plan.views().front().image;
        added.push_back(i);
        ends.push_back(plans.size());
    }
    if (added.empty()) return 0;
    JoinedBatch joined;
    for (size_t n = 0; n < added.size(); ++n) {
        if (!joined.add(plans.span().subspan(ends[n], ends[n + 1] - ends[n]), ends[n], n)) return 2;
    }
    Finish finish;
    finish.type = type;
    finish.channels_last = channels_last;
    std::memcpy(finish.scale, scale, sizeof(finish.scale));
    std::memcpy(finish.bias, bias, sizeof(finish.bias));
    Written written;
    if (!emulate_in_all_orders(joined, plans.span(), finish, written)) return 1;
    const size_t bytes = written.out.size() / added.size();
    for (size_t n = 0; n < added.size(); ++n) {
        const size_t i = static_cast<size_t>(added[n]);
        faults[i] = written.faults[n];
        taken[i] = written.faults[n] == 0;
        std::memcpy(out + i * bytes, written.out.data() + n * bytes, bytes);
    }
    if (planes == nullptr) return 0;
    const ImageRow& image = first;
    const Request& request = requests[added[0]];
    const int h_max = std::max({image.h[0], image.h[1], image.h[2]}), v_max = std::max({image.v[0], image.v[1], image.v[2]});
    const int left = static_cast<int>(image.first_column) * 8 * h_max, top = static_cast<int>(image.first_row) * 8 * v_max;
    const auto samples = [](int pixels, int factor, int most, bool up) { return (pixels * factor + (up ? most - 1 : 0)) / most; };
    for (uint32_t c = 0; c < image.components; ++c) {
        const int x0 = samples(request.support_box[0], image.h[c], h_max, false) - left * image.h[c] / h_max;
        const int y0 = samples(request.support_box[1], image.v[c], v_max, false) - top * image.v[c] / v_max;
        const int x1 = samples(request.support_box[2], image.h[c], h_max, true) - left * image.h[c] / h_max;
        const int y1 = samples(request.support_box[3], image.v[c], v_max, true) - top * image.v[c] / v_max;
        const size_t stride = 8 * size_t{image.block_columns[c]};
        for (int y = y0; y < y1; ++y, planes += x1 - x0) {
            const uint8_t* const row = written.samples.data() + 64 * size_t{image.first_block[c]} + static_cast<size_t>(y) * stride;
            std::memcpy(planes, row + x0, static_cast<size_t>(x1 - x0));
        }
        shapes[2 * c] = y1 - y0;
        shapes[2 * c + 1] = x1 - x0;
    }
    return 0;
}

}  // extern "C"
