#include "cpu/view_groups.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace feeder {
namespace {

// Entropy decoding of an MCU takes about twice as long as its inverse DCT; see "Where the time goes" in README.md.
constexpr int64_t kEntropyCost = 2;
constexpr int64_t kInverseDctCost = 1;

int64_t area(const PixelBox& box) { return static_cast<int64_t>(box.right - box.left) * (box.bottom - box.top); }

PixelBox around(const PixelBox& a, const PixelBox& b) {
    return {std::min(a.left, b.left), std::min(a.top, b.top), std::max(a.right, b.right),
            std::max(a.bottom, b.bottom)};
}

// The cost of decoding boxes of one image.
class Cost {
  public:
    explicit Cost(const JpegHeader& header) : header_(header), grid_(segment_grid(header)) {}

    int64_t of(const PixelBox& box) const {
        const PixelBox window = mcu_window(header_, box);
        return kEntropyCost * entropy_mcus(box, window) + kInverseDctCost * area(window) / mcu_pixels();
    }

  private:
    int64_t mcu_pixels() const { return static_cast<int64_t>(grid_.mcu.mcu_width_px) * grid_.mcu.mcu_height_px; }

    int64_t entropy_mcus(const PixelBox& box, const PixelBox& window) const {
        if (grid_.seekable()) {
            const SegmentWindow segments = segments_for(header_, grid_, box);
            return static_cast<int64_t>(segments.last_row - segments.first_row + 1) *
                   (segments.last_column - segments.first_column + 1) * grid_.segment_mcus;
        }
        // The first scan ends with the box's last row; with further scans all of them are read.
        const int bottom = header_.one_scan() ? window.bottom : header_.height;
        return static_cast<int64_t>(header_.width) * bottom / mcu_pixels();
    }

    const JpegHeader& header_;
    SegmentGrid grid_;
};

}  // namespace

int draft_shrink(const double source_box[4], int out_height, int out_width) {
    const double ratio = std::min((source_box[2] - source_box[0]) / out_width, (source_box[3] - source_box[1]) / out_height);
    return ratio >= 4 ? 4 : ratio >= 2 ? 2 : 1;
}

void group_views(const JpegHeader& header, std::span<const ViewNeed> needs, Fidelity wanted,
                 std::vector<ViewGroup>& groups) {
    groups.clear();
    const bool resizable = has_resizable_planes(header);
    const auto group_of = [&](size_t view) {
        const bool exact = wanted == Fidelity::exact || area(needs[view].box) <= kFewPixels || !resizable;
        const int shrink = exact || wanted != Fidelity::draft ? 1 : needs[view].shrink;
        return ViewGroup{needs[view].box, exact ? Fidelity::exact : Fidelity::fast, shrink, {view}};
    };
    if (needs.size() == 1) {
        groups.push_back(group_of(0));
        return;
    }
    // Large boxes first, which hold most of the others.
    std::vector<size_t> order(needs.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return area(needs[a].box) > area(needs[b].box); });
    const Cost cost(header);
    for (const size_t view : order) {
        const PixelBox& box = needs[view].box;
        ViewGroup alone = group_of(view);
        int64_t least = cost.of(box) + 1;  // what it may add to a group
        ViewGroup* best = nullptr;
        for (ViewGroup& group : groups) {
            if (group.fidelity != alone.fidelity || group.shrink != alone.shrink) continue;
            const int64_t more = cost.of(around(group.box, box)) - cost.of(group.box);
            if (more < least) {
                least = more;
                best = &group;
            }
        }
        if (best == nullptr) {
            groups.push_back(std::move(alone));
        } else {
            best->box = around(best->box, box);
            best->views.push_back(view);
        }
    }
}

}  // namespace feeder
