#include "cpu/part/part_runner.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "cpu/boxes.h"
#include "cpu/threads.h"

namespace feeder {
namespace {

constexpr uint32_t kMostPixels = INT32_MAX;  // on a side

bool read_all(int descriptor, uint8_t* into, size_t count, uint64_t offset) {
    while (count > 0) {
        const ssize_t found = pread(descriptor, into, count, static_cast<off_t>(offset));
        if (found < 0 && errno == EINTR) continue;
        if (found <= 0) return false;
        into += found;
        offset += static_cast<uint64_t>(found);
        count -= static_cast<size_t>(found);
    }
    return true;
}

// True if an image may be cropped before it is resized: then some of its rows are enough.
bool crops_first(std::span<const DrawOp> ops) {
    const auto found = std::find_if(ops.begin(), ops.end(),
                                    [](const DrawOp& op) { return op.kind != DrawOp::Kind::horizontal_flip; });
    return found != ops.end() && (found->kind == DrawOp::Kind::random_resized_crop ||
                                  found->kind == DrawOp::Kind::random_crop || found->kind == DrawOp::Kind::center_crop);
}

}  // namespace

PartRunner::PartRunner(PartOptions options) : options_(std::move(options)), needs_places_(crops_first(options_.ops)) {}

bool PartRunner::is_usual(const Image& image) const {
    const IndexedImage& one = image.indexed;
    return one.orientation >= 1 && one.orientation <= 8 && one.width >= 1 && one.height >= 1 &&
           one.width <= kMostPixels && one.height <= kMostPixels && one.length <= options_.large_bytes &&
           one.length <= image.shard.size_bytes && one.offset <= image.shard.size_bytes - one.length;
}

bool PartRunner::find(std::span<const PartSample> samples, ImageIndex& index, const OpenShards& shards, bool is_last,
                      std::vector<int64_t>& missing) {
    missing.clear();
    images_.resize(samples.size());
    for (size_t i = 0; i < samples.size(); ++i) {
        Image& image = images_[i];
        image.is_ours = false;
        image.bytes = 0;
        if (!index.find(samples[i].shard, samples[i].row, needs_places_, image.indexed)) {
            missing.push_back(samples[i].shard);
            continue;
        }
        const OpenShard* const open = shards.find(image.indexed.shard);
        if (open == nullptr) {
            missing.push_back(image.indexed.shard);
            continue;
        }
        image.shard = *open;
        image.orientation = options_.exif ? image.indexed.orientation : 1;
        image.is_ours = is_usual(image);
    }
    return missing.empty() || is_last;
}

void PartRunner::draw(std::span<const PartSample> samples, uint32_t epoch, ImageIndex& index) {
    for (size_t i = 0; i < samples.size(); ++i) {
        Image& image = images_[i];
        if (!image.is_ours) continue;
        const IndexedImage& one = image.indexed;
        int64_t height = one.height, width = one.width;
        if (image.orientation >= 5) std::swap(height, width);
        image.is_ours = draw_base(options_.ops, options_.seed, epoch, samples[i].key, height, width, image.drawn);
        if (!image.is_ours) continue;
        const PixelBox stored = stored_box(image.drawn.support_box, image.orientation, static_cast<int>(one.width),
                                           static_cast<int>(one.height));
        image.extent = index.extent(one, stored.top, stored.bottom);
        image.bytes = static_cast<size_t>(image.extent.header + image.extent.end - image.extent.begin);
    }
}

void PartRunner::advise(const Image& image) const {
    const int descriptor = image.shard.descriptor;
    const auto at = static_cast<off_t>(image.indexed.offset);
    const auto header = static_cast<off_t>(image.extent.header);
    // It is only advice.
    if (header > 0) (void)posix_fadvise(descriptor, at, header, POSIX_FADV_WILLNEED);
    (void)posix_fadvise(descriptor, at + static_cast<off_t>(image.extent.begin),
                        static_cast<off_t>(image.bytes) - header, POSIX_FADV_WILLNEED);
}

bool PartRunner::read_image(const Image& image, uint8_t* into) const {
    const int descriptor = image.shard.descriptor;
    const uint64_t at = image.indexed.offset;
    const size_t header = static_cast<size_t>(image.extent.header);
    return read_all(descriptor, into, header, at) &&
           read_all(descriptor, into + header, image.bytes - header, at + static_cast<uint64_t>(image.extent.begin));
}

bool PartRunner::has_changed(const OpenShard& shard) const {
    if (!options_.made_ns) return false;
    struct stat status;
    if (shard.changed_ns > *options_.made_ns || fstat(shard.descriptor, &status) != 0) return true;
    return int64_t{status.st_ctim.tv_sec} * 1'000'000'000 + status.st_ctim.tv_nsec != shard.changed_ns;
}

void PartRunner::read(OpenShards& shards, size_t advise_from) {
    order_.clear();
    size_t total = 0;
    for (size_t i = 0; i < images_.size(); ++i) {
        if (!images_[i].is_ours) continue;
        order_.push_back(i);
        total += images_[i].bytes;
    }
    std::sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
        const IndexedImage &one = images_[a].indexed, &other = images_[b].indexed;
        return std::pair(one.shard, one.offset) < std::pair(other.shard, other.offset);
    });
    if (total > shards.arena.capacity() && !shards.arena.reserve(std::max(total, 2 * shards.arena.capacity()))) {
        for (Image& image : images_) image.is_ours = false;
        return;
    }
    size_t begin = 0;
    for (const size_t i : order_) {
        images_[i].file = {shards.arena.data() + begin, images_[i].bytes};
        begin += images_[i].bytes;
    }
    if (total > advise_from)
        for (const size_t i : order_) advise(images_[i]);
    std::atomic<size_t> next{0};
    const auto wanted = std::min(static_cast<size_t>(options_.threads), order_.size());
    run_on_threads(static_cast<int>(wanted), [&] {
        for (size_t k = next.fetch_add(1); k < order_.size(); k = next.fetch_add(1)) {
            Image& image = images_[order_[k]];
            image.is_ours = read_image(image, shards.arena.data() + (image.file.data() - shards.arena.data()));
        }
    });
    // Only after all is read: what changed before was read in part.
    int64_t last = -1;
    bool changed = false;
    for (const size_t i : order_) {
        Image& image = images_[i];
        if (image.indexed.shard != last) {
            last = image.indexed.shard;
            changed = has_changed(image.shard);
        }
        if (changed) image.is_ours = false;
    }
}

std::span<const ImageJob> PartRunner::jobs(const PartOutput& output) {
    jobs_.clear();
    order_.clear();
    for (size_t i = 0; i < images_.size(); ++i) {
        Image& image = images_[i];
        if (!image.is_ours) continue;
        const BaseDraw& drawn = image.drawn;
        if (drawn.height != output.first.height || drawn.width != output.first.width) {
            image.is_ours = false;
            continue;
        }
        ImageJob job;
        job.file = image.file;
        job.first_row = static_cast<int>(image.extent.first_row);
        job.image_height = static_cast<int>(image.indexed.height);
        job.image_width = static_cast<int>(image.indexed.width);
        if (image.orientation >= 5) std::swap(job.image_height, job.image_width);
        job.orientation = image.orientation;
        std::copy_n(drawn.source_box, 4, image.view.source_box);
        std::copy_n(drawn.support_box, 4, image.view.support_box);
        image.view.flip = drawn.flip;
        image.view.filter = options_.filter;
        image.view.part = {};
        if (drawn.frame[2] != drawn.width || drawn.frame[3] != drawn.height) {
            image.view.part.left = static_cast<int>(drawn.frame[0]);
            image.view.part.top = static_cast<int>(drawn.frame[1]);
            image.view.part.width = static_cast<int>(drawn.frame[2]);
            image.view.part.height = static_cast<int>(drawn.frame[3]);
            std::copy_n(options_.fill, 3, image.view.part.fill);
        }
        image.view.out = output.first;
        const size_t place = output.places.empty() ? i : static_cast<size_t>(output.places[i]);
        image.view.out.data = static_cast<uint8_t*>(output.first.data) + place * output.image_bytes;
        const size_t steps = output.programs.size() / images_.size();
        image.view.program = output.programs.subspan(i * steps, steps);
        job.views = {&image.view, 1};
        jobs_.push_back(job);
        order_.push_back(i);
    }
    return jobs_;
}

void PartRunner::decode(const PartOutput& output) {
    jobs(output);
    outcomes_.assign(jobs_.size(), {});
    decode_all(jobs_, options_.decode, options_.threads, outcomes_);
    for (size_t k = 0; k < jobs_.size(); ++k) {
        Image& image = images_[order_[k]];
        image.outcome = std::move(outcomes_[k]);
        image.is_ours = image.outcome.ok();
    }
}

}  // namespace feeder
