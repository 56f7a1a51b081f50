// Our own decoder for the common case: Huffman-coded sequential JPEG of 8 bits in one scan, straight to planes.
#pragma once

#include <memory>
#include <vector>

#include "cpu/bytes.h"
#include "cpu/image.h"
#include "cpu/jpeg/block_transform.h"
#include "cpu/jpeg/entropy.h"
#include "cpu/jpeg/entropy_wide.h"
#include "cpu/jpeg/header.h"
#include "cpu/jpeg/huffman.h"
#include "cpu/jpeg/planes.h"
#include "cpu/jpeg/segments.h"
#include "cpu/stage_times.h"

namespace feeder {

// Decodes only the restart segments that overlap the box, each only up to the last MCU needed, several segments at a
// time, and does the inverse DCT only inside the box. It gives up on everything unusual: the caller then uses libjpeg,
// which decides about damaged files. Keeps tables and buffers; one per thread.
class BaselineDecoder {
  public:
    // True: `planes` point into `pixels`. False: another kind of JPEG, a damaged one, or no memory. `file_row` is the MCU
    // row at which the file's entropy-coded data begin; see ImageJob. `shrink`: see planes_of().
    bool decode(ByteSpan file, const JpegHeader& header, const PixelBox& box, int file_row, Bytes& pixels,
                Planes& planes, StageTimes* times = nullptr, int shrink = 1);

    // Only the entropy decoding of `decode`, of the whole image. `coefficients` gets 64 for each block, in the order
    // of the file and, within a block, zigzag order; nullptr: they are discarded. Returns the number of blocks, -1 where
    // decode() would return false.
    int64_t read_coefficients(ByteSpan file, const JpegHeader& header, int16_t* coefficients);

  private:
    static constexpr int kStreams = EntropyKernels::kMostStreams;
    static constexpr int kRunBlocks = 64;

    // The MCUs whose pixels are needed, in the grid of all.
    struct Window {
        int columns = 0;  // of the whole image
        int first_column = 0;
        int end_column = 0;
        int first_row = 0;
        int end_row = 0;
        int64_t mcus = 0;
    };
    // The part of a segment that is needed.
    struct Task {
        size_t offset = 0;  // of its bytes in unstuffed_
        size_t bytes = 0;
        int first_mcu = 0;
        int end_mcu = 0;
        bool may_have_rest = false;
    };
    // A task at work, and its current run of neighbouring MCUs.
    struct Run {
        const Task* task = nullptr;
        int mcu = 0;
        int row = 0;
        int column = 0;
        int mcus = 0;
        bool wanted = false;

        void start(const Task& started, const Window& window);
        // MCUs of one row from `mcu` on, all needed or all not; of needed ones at most so many.
        void next(const Window& window, int most_wanted);
        // MCUs of one row from `mcu` on, at most so many, `wanted` if any is.
        void next_whole(const Window& window, int most);
        // False: the task is over.
        bool pass(const Window& window);
    };
    // A stream with its run, and the memory for its blocks.
    struct Lane {
        EntropyStream stream;
        Run run;
        uint8_t last[kRunBlocks];
        alignas(64) int16_t blocks[kRunBlocks][64] = {};
    };
    // The same for each lane of a vector.
    struct Wide {
        WideStreams streams;
        Run run[WideStreams::kLanes];
        unsigned dc[WideStreams::kLanes][4];
        CodeTable tables[8];  // DC and AC
    };

    bool prepare(ByteSpan file, const JpegHeader& original, JpegHeader& header);
    bool build_tables(ByteSpan file, const JpegHeader& header);
    bool plan_tasks(ByteSpan file, const JpegHeader& header, const Window& window, int file_row, Lap& lap);
    template <typename Take>
    bool decode_tasks(const EntropyKernels& kernels, const Window& window, const Take& take, Lap& lap);
    template <typename Take>
    bool decode_wide(WideDecode decode, const Window& window, const Take& take, Lap& lap);
    void start_run(const EntropyKernels& kernels, Lane& lane, const Window& window);
    void start_run(WideStreams& streams, int lane, Run& run, const Window& window);
    void transform(const JpegHeader& header, const Window& window, const Run& run, int16_t (*blocks)[64],
                   const uint8_t* last, const Planes& planes);
    void transform_reduced(const JpegHeader& header, const Window& window, const Run& run,
                           const int16_t (*blocks)[64], const Planes& planes, int shrink);
    bool open_wide();
    WidePlan wide_plan();

    BlockTransform transform_;
    DcTable dc_tables_[4];
    AcTable ac_tables_[4];
    McuPlan plan_;
    alignas(16) int16_t quant_[4][64];  // in natural order
    std::vector<Segment> segments_;
    std::vector<Task> tasks_;
    Bytes unstuffed_;
    Lane lanes_[kStreams];
    std::unique_ptr<Wide> wide_;  // once it was used
};

}  // namespace feeder
