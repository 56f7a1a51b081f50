#include "cpu/decode.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "cpu/boxes.h"
#include "cpu/jpeg/bands.h"
#include "cpu/jpeg/cut.h"
#include "cpu/jpeg/header.h"
#include "cpu/jpeg/libjpeg_decode.h"
#include "cpu/jpeg/segments.h"
#include "cpu/npy.h"
#include "cpu/packed/jpeg_writer.h"
#include "cpu/per_process.h"
#include "cpu/threads.h"

namespace feeder {
namespace {

constexpr const char* kWrongRows = "JPEG: its rows are not where they were said to be";
constexpr const char* kDamagedRows = "packed JPEG: damaged row";

std::string size_text(int width, int height) { return std::to_string(width) + "x" + std::to_string(height); }

bool inside(const PixelBox& box, int width, int height) {
    return box.left >= 0 && box.top >= 0 && box.left < box.right && box.top < box.bottom && box.right <= width &&
           box.bottom <= height;
}

Outcome check_kind(const JpegHeader& header) {
    if (header.sof > 0xC2 && header.sof != 0xC9 && header.sof != 0xCA) {
        return {Status::unsupported, "JPEG: lossless or hierarchical coding"};
    }
    if (header.precision_bits != 8) {
        return {Status::unsupported, "JPEG: " + std::to_string(header.precision_bits) + " bits a sample, not 8"};
    }
    return {};
}

// The image must have the size for which the boxes were drawn, and not be too large.
Outcome check_size(const ImageJob& job, int width, int height, const DecodeOptions& options) {
    if (options.max_pixels > 0 && static_cast<int64_t>(width) * height > options.max_pixels) {
        return {Status::too_large, "the image has " + size_text(width, height) +
                                       " pixels, more than max_pixels=" + std::to_string(options.max_pixels) +
                                       "; make it smaller"};
    }
    if (job.orientation >= 5) std::swap(width, height);
    if (job.image_height != 0 && (job.image_height != height || job.image_width != width)) {
        return {Status::corrupt, "the index says " + size_text(job.image_width, job.image_height) +
                                     " pixels (width x height, upright), the image has " + size_text(width, height) +
                                     "; run `feeder index` again if the shards have changed"};
    }
    for (const View& view : job.views) {
        if (view.part.left < 0) {
            return {Status::corrupt, "RandomCrop is larger than what the ops before it leave of the image of " +
                                         size_text(width, height) + " pixels; resize to more, or set pad_if_needed=True"};
        }
        const int* const box = view.support_box;
        if (!inside({box[0], box[1], box[2], box[3]}, width, height)) {
            return {Status::corrupt, "the support box does not lie in the image of " + size_text(width, height) +
                                         " pixels (width x height, upright)"};
        }
    }
    return {};
}

// Buffers outlive a batch: decoders return to this list, and any thread takes them from it.
class DecoderPool {
  public:
    std::unique_ptr<ImageDecoder> take() {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (!idle_.empty()) {
                std::unique_ptr<ImageDecoder> decoder = std::move(idle_.back());
                idle_.pop_back();
                return decoder;
            }
        }
        return std::make_unique<ImageDecoder>();
    }

    void give_back(std::unique_ptr<ImageDecoder> decoder) {
        const std::lock_guard<std::mutex> lock(mutex_);
        idle_.push_back(std::move(decoder));
    }

  private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<ImageDecoder>> idle_;
};

DecoderPool& decoder_pool() { return PerProcess<DecoderPool>::get(); }

void decode_from_queue(std::span<const ImageJob> jobs, const DecodeOptions& options, std::atomic<size_t>& next,
                       std::span<Outcome> outcomes) {
    std::unique_ptr<ImageDecoder> decoder = decoder_pool().take();
    for (size_t i = next.fetch_add(1); i < jobs.size(); i = next.fetch_add(1))
        outcomes[i] = decoder->decode(jobs[i], options);
    decoder_pool().give_back(std::move(decoder));
}

}  // namespace

Outcome ImageDecoder::decode_jpeg(const ImageJob& job, const JpegHeader& header, const ViewGroup& group,
                                  Planes& planes, StageTimes* times) {
    const ByteSpan file = job.file;
    const PixelBox& box = group.box;
    const Fidelity fidelity = group.fidelity;
    const int file_row = job.is_whole() ? 0 : mcu_row_at(header, job.first_row);
    if (file_row < 0) return {Status::corrupt, kWrongRows};
    if (fidelity == Fidelity::fast && baseline_.decode(file, header, box, file_row, pixels_, planes, times, group.shrink))
        return {};

    // Everything that our own decoder does not support, or finds damaged.
    Lap lap(times);
    Outcome outcome;
    CutPlace place;
    if (cut_jpeg(file, header, box, file_row, segments_, cut_, place) == CutResult::cut) {
        outcome = decode_cut(header, group, place, planes);
    } else if (job.is_whole()) {
        outcome = decode_with_libjpeg(file, header, box, fidelity, pixels_, planes);
    } else {
        outcome = {Status::corrupt, kWrongRows};
    }
    lap.add_to(&StageTimes::libjpeg);
    return outcome;
}

// Decodes cut_, which is a part of an image.
Outcome ImageDecoder::decode_cut(const JpegHeader& header, const ViewGroup& group, const CutPlace& place,
                                 Planes& planes, McuSource* source) {
    const PixelBox& box = group.box;
    JpegHeader cut_header;
    Outcome outcome = parse_jpeg_header(cut_.span(), cut_header);
    if (!outcome.ok()) return outcome;
    const PixelBox inner = {box.left - place.origin_x, box.top - place.origin_y, box.right - place.origin_x,
                            box.bottom - place.origin_y};
    outcome = decode_with_libjpeg(cut_.span(), cut_header, inner, group.fidelity, pixels_, planes, source);
    planes.origin_x += place.origin_x;
    planes.origin_y += place.origin_y;
    planes.image_width = header.width;
    planes.image_height = header.height;
    return outcome;
}

Outcome ImageDecoder::decode_packed(const PackedFile& file, const Codebook& codebook, const ViewGroup& group,
                                    Planes& planes, StageTimes* times) {
    if (group.fidelity == Fidelity::fast) {
        if (packed_.decode(file, codebook, group.box, pixels_, planes, times, group.shrink)) return {};
        return {Status::corrupt, kDamagedRows};
    }
    Lap lap(times);
    CutPlace place;
    PackedCut source;
    Outcome outcome = source.open(file, codebook, group.box, cut_, place);
    if (outcome.ok()) outcome = decode_cut(file.header(), group, place, planes, &source);
    if (source.damaged()) outcome = {Status::corrupt, kDamagedRows};
    lap.add_to(&StageTimes::libjpeg);
    return outcome;
}

// To the view's part of a planar image of bytes, or to all of another output.
void ImageDecoder::resample_into(const ImageJob& job, const Planes& planes, const View& view, const Output& out) {
    Output part = out;
    if (!view.part.is_all()) {
        uint8_t* const data = static_cast<uint8_t*>(out.data);
        const size_t pixels = static_cast<size_t>(out.height) * out.row_elements;
        for (size_t c = 0; c < 3; ++c) std::memset(data + c * out.channel_elements, view.part.fill[c], pixels);
        part.data = data + static_cast<size_t>(view.part.top) * out.row_elements + static_cast<size_t>(view.part.left);
        part.height = view.part.height;
        part.width = view.part.width;
        if (part.height < 1 || part.width < 1) return;
    }
    resample(planes, view.source_box, view.support_box, job.orientation, view.flip, view.filter, part, scratch_);
}

void ImageDecoder::store(const ImageJob& job, const Planes& planes, size_t view, StageTimes* times) {
    const int64_t started = now_ns();
    Lap lap(times);
    const View& one = views_[view];
    if (!one.part.is_all() || changes_pixels(one.program)) {
        resample_into(job, planes, one, augmenter_.image(one.out.height, one.out.width));
        augmenter_.run(one.program);
        augmenter_.store(one.out);
    } else {
        resample_into(job, planes, one, one.out);
    }
    erase_output(one.program, one.out);
    lap.add_to(&StageTimes::resize);
    transform_ns_ += now_ns() - started;
}

Outcome ImageDecoder::decode_npy(const ImageJob& job, const DecodeOptions& options) {
    Planes planes;
    Outcome outcome = npy_planes(job.file, planes);
    if (outcome.ok()) outcome = check_size(job, planes.image_width, planes.image_height, options);
    for (size_t i = 0; i < views_.size() && outcome.ok(); ++i) store(job, planes, i, nullptr);
    return outcome;
}

Outcome ImageDecoder::decode_png(const ImageJob& job, const DecodeOptions& options, StageTimes* times) {
    Outcome outcome = png_.open(job.file);
    if (outcome.ok()) outcome = check_size(job, png_.width(), png_.height(), options);
    if (!outcome.ok()) return outcome;
    int top = png_.height(), bottom = 0;
    for (View& view : views_) {
        narrow_support(view.filter, view.source_box, view.height(), view.width(), view.support_box);
        const PixelBox box = stored_box(view.support_box, job.orientation, png_.width(), png_.height());
        top = std::min(top, box.top);
        bottom = std::max(bottom, box.bottom);
    }
    Planes planes;
    outcome = png_.decode(top, bottom, planes);
    for (size_t i = 0; i < views_.size() && outcome.ok(); ++i) store(job, planes, i, times);
    return outcome;
}

Outcome ImageDecoder::decode_views(const ImageJob& job, const DecodeOptions& options, StageTimes* times) {
    Lap lap(times);
    views_.assign(job.views.begin(), job.views.end());
    if (looks_like_npy(job.file)) return decode_npy(job, options);
    if (looks_like_png(job.file)) return decode_png(job, options, times);
    const bool is_packed = looks_like_packed(job.file);
    PackedFile packed;
    const Codebook* codebook = nullptr;
    JpegHeader header;
    Outcome outcome = is_packed ? packed.open(job.file, job.first_row) : parse_jpeg_header(job.file, header);
    if (outcome.ok() && is_packed) {
        header = packed.header();
        codebook = find_codebook(packed.codebook_id());
        if (codebook == nullptr) outcome = {Status::corrupt, unknown_codebook(packed.codebook_id())};
    }
    if (outcome.ok()) outcome = check_kind(header);
    if (outcome.ok()) outcome = check_size(job, header.width, header.height, options);
    if (!outcome.ok()) return outcome;
    const bool complete = is_packed || !job.is_whole() || has_end(job.file, header.entropy_offset);
    needs_.clear();
    for (View& view : views_) {
        narrow_support(view.filter, view.source_box, view.height(), view.width(), view.support_box);
        needs_.push_back({stored_box(view.support_box, job.orientation, header.width, header.height),
                          draft_shrink(view.source_box, view.height(), view.width())});
    }
    group_views(header, needs_, options.fidelity, groups_);
    lap.add_to(&StageTimes::header);
    for (const ViewGroup& group : groups_) {
        Planes planes;
        const Outcome found = is_packed ? decode_packed(packed, *codebook, group, planes, times)
                                        : decode_jpeg(job, header, group, planes, times);
        if (found.status > outcome.status) outcome = found;
        if (found.status > Status::damaged) break;
        for (const size_t view : group.views) store(job, planes, view, times);
    }
    // A truncated file is damaged wherever the box is, as an image's status must not depend on the crop. A file of which
    // only some rows were read was complete when it was indexed; later damage to its other rows is not seen.
    if (outcome.ok() && !complete) outcome = read_with_libjpeg(job.file, header);
    outcome.slow = options.fidelity != Fidelity::exact && !has_resizable_planes(header);
    return outcome;
}

Outcome ImageDecoder::decode(const ImageJob& job, const DecodeOptions& options, StageTimes* times) {
    const int64_t started = now_ns();
    transform_ns_ = 0;
    Outcome outcome;
    try {
        outcome = decode_views(job, options, times);
    } catch (const std::bad_alloc&) {
        return {Status::corrupt, "out of memory"};
    } catch (const std::invalid_argument& error) {
        return {Status::unsupported, error.what()};
    }
    outcome.transform_ns = transform_ns_;
    outcome.decode_ns = now_ns() - started - transform_ns_;
    return outcome;
}

void decode_all(std::span<const ImageJob> jobs, const DecodeOptions& options, int threads,
                std::span<Outcome> outcomes) {
    std::atomic<size_t> next{0};
    const size_t wanted = std::min<size_t>(static_cast<size_t>(std::max(threads, 1)), jobs.size());
    run_on_threads(static_cast<int>(wanted), [&] { decode_from_queue(jobs, options, next, outcomes); });
}

}  // namespace feeder
