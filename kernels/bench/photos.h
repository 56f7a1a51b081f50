// The photos of a benchmark, and random crops of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

namespace feeder {

// All files below a folder, sorted.
inline std::vector<std::filesystem::path> files_in(const char* folder) {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
        if (entry.is_regular_file()) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    return paths;
}

inline std::vector<uint8_t> read_file(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// Draws the box of a random resized crop.
inline void draw_box(std::mt19937& random, int width, int height, int box[4]) {
    box[0] = box[1] = 0;
    box[2] = width;
    box[3] = height;
    for (int attempt = 0; attempt < 10; ++attempt) {
        const double area = std::uniform_real_distribution<double>(0.08, 1.0)(random) * width * height;
        const double ratio =
            std::exp(std::uniform_real_distribution<double>(std::log(3.0 / 4), std::log(4.0 / 3))(random));
        const int w = static_cast<int>(std::lround(std::sqrt(area * ratio)));
        const int h = static_cast<int>(std::lround(std::sqrt(area / ratio)));
        if (w < 1 || h < 1 || w > width || h > height) continue;
        box[0] = std::uniform_int_distribution<int>(0, width - w)(random);
        box[1] = std::uniform_int_distribution<int>(0, height - h)(random);
        box[2] = box[0] + w;
        box[3] = box[1] + h;
        return;
    }
}

}  // namespace feeder
