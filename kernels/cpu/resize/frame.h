// The stored image as the resize sees it, and the checks of what a caller asks for.
#pragma once

#include "cpu/image.h"
#include "cpu/resize/store.h"

namespace feeder {

// The stored image turned so that its axes are those of the upright one; mirrored along them where it says so.
struct Frame {
    bool transposed, mirrored_x, mirrored_y;
    int image_width, image_height, origin_x, origin_y, window_width, window_height;
};

// A region in the frame's axes, or a stored plane's.
struct Region {
    int left, top, right, bottom;
};

Frame frame_of(const Planes& planes, int orientation);

// Each throws std::invalid_argument with what was expected and what was found.
void check_planes(const Planes& planes);
void check_boxes(const Frame& frame, const double source[4], const int support[4], int orientation);
void check_output(const Output& out);

}  // namespace feeder
