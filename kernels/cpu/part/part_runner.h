// One part of a batch: from sample ids to pixels in the caller's output.
//
// Note [the other way]
// This is the short way for samples of which nothing is unusual. Whatever is, from a wrong number in the index to a file
// that is damaged or no JPEG, is left to the caller, who has another way to make that sample and to explain what is wrong.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "cpu/bytes.h"
#include "cpu/decode.h"
#include "cpu/part/base_draws.h"
#include "cpu/part/image_index.h"

namespace feeder {

struct OpenShard {
    int descriptor = -1;
    uint64_t size_bytes = 0;
    int64_t changed_ns = 0;  // its ctime when it was opened
};

// The open shards of one thread, and the memory that a part's images are read into.
class OpenShards {
  public:
    void put(int64_t shard, const OpenShard& open) { shards_[shard] = open; }
    void remove(int64_t shard) { shards_.erase(shard); }
    const OpenShard* find(int64_t shard) const {
        const auto found = shards_.find(shard);
        return found == shards_.end() ? nullptr : &found->second;
    }

    Bytes arena;

  private:
    std::unordered_map<int64_t, OpenShard> shards_;
};

struct PartSample {
    int64_t shard;
    int64_t row;   // see ImageIndex::find()
    uint64_t key;  // of the draws
};

struct PartOptions {
    std::vector<DrawOp> ops;
    uint64_t seed = 0;
    bool exif = true;
    uint64_t large_bytes = 0;  // larger files go the other way
    std::optional<int64_t> made_ns;  // shards that changed since then go the other way; none: they can't
    ResizeFilter filter = ResizeFilter::bilinear;
    uint8_t fill[3] = {};  // of a border
    DecodeOptions decode;
    int threads = 1;
};

// The output of row 0; that of each other row is `image_bytes` behind the one before it.
struct PartOutput {
    Output first;
    size_t image_bytes = 0;
    std::span<const int64_t> places;  // the row of each sample; empty: its number
    Program programs;  // of all samples, of equal lengths, one behind the other; may be empty
};

class PartRunner {
  public:
    explicit PartRunner(PartOptions options);

    // The steps, in this order. Each leaves out the samples that go the other way.
    // Finds the samples in the index. False if an index or shard is not held, unless `is_last`; `missing` has these shards.
    bool find(std::span<const PartSample> samples, ImageIndex& index, const OpenShards& shards, bool is_last,
              std::vector<int64_t>& missing);
    // Draws, and finds the bytes to read.
    void draw(std::span<const PartSample> samples, uint32_t epoch, ImageIndex& index);
    // Reads in stored order, so that neighbors come from one place on the disk. Without the index. `advise_from`: reads of
    // more bytes in all are announced to the kernel before, so that those from a slow disk overlap.
    void read(OpenShards& shards, size_t advise_from = SIZE_MAX);
    void decode(const PartOutput& output);
    // In place of decode(): the jobs of the samples at hand with outputs of this size, to be done by the caller. Job k is
    // sample sample_of(k).
    std::span<const ImageJob> jobs(const PartOutput& output);
    size_t sample_of(size_t job) const { return order_[job]; }
    void leave_out(size_t i) { images_[i].is_ours = false; }

    bool is_done(size_t i) const { return images_[i].is_ours; }
    int64_t label(size_t i) const { return images_[i].indexed.label; }
    const Outcome& outcome(size_t i) const { return images_[i].outcome; }
    // Of the samples that are ours still: whoever takes the others on reads them again, and counts them.
    int64_t read_bytes() const {
        int64_t bytes = 0;
        for (const Image& image : images_) bytes += image.is_ours ? static_cast<int64_t>(image.bytes) : 0;
        return bytes;
    }

  private:
    struct Image {
        IndexedImage indexed;
        OpenShard shard;
        BaseDraw drawn;
        BandExtent extent;
        size_t bytes = 0;  // to read
        ByteSpan file;     // as read
        int orientation = 1;
        bool is_ours = false;
        View view;
        Outcome outcome;
    };

    bool is_usual(const Image& image) const;
    void advise(const Image& image) const;
    bool read_image(const Image& image, uint8_t* into) const;
    bool has_changed(const OpenShard& shard) const;

    PartOptions options_;
    bool needs_places_;
    std::vector<Image> images_;
    std::vector<size_t> order_;
    std::vector<ImageJob> jobs_;
    std::vector<Outcome> outcomes_;
};

}  // namespace feeder
