// What a model did when it was saved, in the metadata of our safetensors files: `thimble qa` holds it to that.
// Checkpoints of a run have these (train/checkpoint.h), and a copy for inference keeps them where it keeps every bit of
// the weights.
#pragma once

#include <array>
#include <string_view>

namespace thimble {

inline constexpr std::string_view kGoldenKey = "thimble.golden";  // train/golden.h
inline constexpr std::string_view kGoldenNatsKey = "thimble.golden_nats";
inline constexpr std::string_view kValLossKey = "thimble.val_loss";      // nats per token
inline constexpr std::string_view kValBpbKey = "thimble.val_bpb";        // bits per byte
inline constexpr std::string_view kValSetKey = "thimble.val_set";        // TokenSet::fingerprint()
inline constexpr std::string_view kValTokensKey = "thimble.val_tokens";  // how many of it at most; 0: all

inline constexpr std::array kRecordKeys = {kGoldenKey, kGoldenNatsKey, kValLossKey,
                                           kValBpbKey, kValSetKey,     kValTokensKey};

}  // namespace thimble
