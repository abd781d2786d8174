// How hard a text is to predict, measured on a sample before any model is trained.
//
// The measure is the bits per byte of a byte n-gram model (orders 0 to 5, Witten-Bell
// interpolation) that is trained on one part of the sample and scored on another. It takes a
// fraction of a second and separates simple texts (children's stories: 1.7) from varied ones
// (Wikipedia: 2.5).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/signals.h"
#include "data/document.h"
#include "data/records.h"

namespace thimble {

struct SampledText {
  std::string train, held_out;  // different parts of the sample, without JSON syntax
  double bytes = 0;             // of the complete text, estimated if not all of it was read
  double documents = 0;         // likewise
  bool is_complete = false;     // the sample is the complete text
};

inline constexpr std::uint64_t kSampleTextBytes = std::uint64_t{4} << 20;

// Reads at most about `most_bytes`, from files spread over the source. With many documents every
// tenth is held out; of a long document, its last tenth.
SampledText sample_text(const DataSource& source, const ReadOptions& read, const Interrupt& interrupt,
                        std::uint64_t most_bytes = kSampleTextBytes);

// Bits per byte of `held_out` for an n-gram model of `train`; 8 if one of them is empty. Of long
// texts it reads pieces: 1 MiB of `train` and 256 KiB of `held_out`.
double ngram_bits_per_byte(std::string_view train, std::string_view held_out);

}  // namespace thimble
