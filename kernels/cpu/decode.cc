#include "decode.h"

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "jpeg_cut.h"
#include "jpeg_header.h"
#include "jpeg_libjpeg.h"
#include "jpeg_segments.h"

namespace feeder {
namespace {

std::string size_text(int width, int height) { return std::to_string(width) + "x" + std::to_string(height); }

Outcome check_header(const JpegHeader& header, const DecodeOptions& options) {
    if (header.sof > 0xC2 && header.sof != 0xC9 && header.sof != 0xCA)
        return {Status::unsupported, "JPEG: lossless or hierarchical coding"};
    if (header.precision_bits != 8)
        return {Status::unsupported, "JPEG: " + std::to_string(header.precision_bits) + " bits a sample, not 8"};
    const int64_t pixels = static_cast<int64_t>(header.width) * header.height;
    if (options.max_pixels > 0 && pixels > options.max_pixels) {
        return {Status::too_large, "JPEG: " + size_text(header.width, header.height) +
                                       " pixels, more than max_pixels=" + std::to_string(options.max_pixels)};
    }
    return {};
}

bool inside(const PixelBox& box, int width, int height) {
    return box.left >= 0 && box.top >= 0 && box.left < box.right && box.top < box.bottom && box.right <= width &&
           box.bottom <= height;
}

// Buffers outlive a batch: decoders go back to this list and come out again, whichever thread asks.
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

DecoderPool& decoder_pool() {
    static DecoderPool* const pool = new DecoderPool;  // never destroyed: threads may still decode at exit
    return *pool;
}

void decode_from_queue(std::span<const ImageJob> jobs, const DecodeOptions& options, std::atomic<size_t>& next,
                       std::span<Outcome> outcomes) {
    std::unique_ptr<ImageDecoder> decoder = decoder_pool().take();
    for (size_t i = next.fetch_add(1); i < jobs.size(); i = next.fetch_add(1))
        outcomes[i] = decoder->decode(jobs[i], options);
    decoder_pool().give_back(std::move(decoder));
}

}  // namespace

PixelBox stored_box(const int box[4], int orientation, int width, int height) {
    const int left = box[0], top = box[1], right = box[2], bottom = box[3];
    switch (orientation) {
        case 2:
            return {width - right, top, width - left, bottom};
        case 3:
            return {width - right, height - bottom, width - left, height - top};
        case 4:
            return {left, height - bottom, right, height - top};
        case 5:
            return {top, left, bottom, right};
        case 6:
            return {top, height - right, bottom, height - left};
        case 7:
            return {width - bottom, height - right, width - top, height - left};
        case 8:
            return {width - bottom, left, width - top, right};
        default:
            return {left, top, right, bottom};
    }
}

Outcome ImageDecoder::decode_planes(ByteSpan file, const PixelBox& box, const DecodeOptions& options, Planes& planes,
                                    StageTimes* times) {
    Lap lap(times);
    JpegHeader header;
    Outcome outcome = parse_jpeg_header(file, header);
    if (outcome.ok()) outcome = check_header(header, options);
    if (!outcome.ok()) return outcome;
    if (!inside(box, header.width, header.height)) {
        return {Status::corrupt, "the support box does not lie in the JPEG's " +
                                     size_text(header.width, header.height) +
                                     " stored pixels: the index may belong to another file"};
    }

    lap.add_to(&StageTimes::header);
    if (options.fidelity == Fidelity::fast && baseline_.decode(file, header, box, pixels_, planes, times)) return {};

    // Whatever our own decoder does not do, or finds damaged.
    lap = Lap(times);
    CutPlace place;
    if (cut_jpeg(file, header, box, segments_, cut_, place) == CutResult::cut) {
        JpegHeader cut_header;
        outcome = parse_jpeg_header(cut_.span(), cut_header);
        if (!outcome.ok()) return outcome;
        const PixelBox inner = {box.left - place.origin_x, box.top - place.origin_y, box.right - place.origin_x,
                                box.bottom - place.origin_y};
        outcome = decode_with_libjpeg(cut_.span(), cut_header, inner, options.fidelity, pixels_, planes);
        planes.origin_x += place.origin_x;
        planes.origin_y += place.origin_y;
        planes.image_width = header.width;
        planes.image_height = header.height;
    } else {
        outcome = decode_with_libjpeg(file, header, box, options.fidelity, pixels_, planes);
    }
    lap.add_to(&StageTimes::libjpeg);
    return outcome;
}

Outcome ImageDecoder::decode(const ImageJob& job, const DecodeOptions& options, StageTimes* times) {
    try {
        JpegHeader header;
        Outcome outcome = parse_jpeg_header(job.file, header);
        if (!outcome.ok()) return outcome;
        const PixelBox box = stored_box(job.support_box, job.orientation, header.width, header.height);
        Planes planes;
        outcome = decode_planes(job.file, box, options, planes, times);
        if (outcome.status > Status::damaged) return outcome;
        Lap lap(times);
        resample(planes, job.source_box, job.support_box, job.orientation, job.flip, job.out, scratch_);
        lap.add_to(&StageTimes::resize);
        return outcome;
    } catch (const std::bad_alloc&) {
        return {Status::corrupt, "out of memory"};
    } catch (const std::invalid_argument& error) {
        return {Status::unsupported, error.what()};
    }
}

void decode_all(std::span<const ImageJob> jobs, const DecodeOptions& options, int threads,
                std::span<Outcome> outcomes) {
    std::atomic<size_t> next{0};
    std::vector<std::jthread> helpers;
    const size_t wanted = std::min<size_t>(static_cast<size_t>(std::max(threads, 1)), jobs.size());
    for (size_t i = 1; i < wanted; ++i) {
        try {
            helpers.emplace_back([&] { decode_from_queue(jobs, options, next, outcomes); });
        } catch (const std::system_error&) {
            break;  // no more threads to be had: the others do its share
        }
    }
    decode_from_queue(jobs, options, next, outcomes);
}

}  // namespace feeder
