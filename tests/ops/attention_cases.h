// Cases of the ops with heads.
#pragma once

#include "ops/attention.h"
#include "ops/fill.h"
#include "ops/rope.h"

namespace thimble {

inline std::vector<OpCase> rope_cases() {
  enum Gain { none, shared, per_head };
  struct Size {
    std::int64_t N, H, D, R;
    int direction;
    bool norm, weight;
    Gain gain;
    bool large = false;
  };
  Fill fill(&op::kRope);
  std::vector<OpCase> cases;
  for (const Size& s :
       {Size{1, 1, 2, 2, 1, false, false, none}, Size{2, 3, 4, 4, -1, true, false, none},
        Size{5, 2, 8, 4, 1, false, false, shared}, Size{5, 4, 8, 8, -1, true, true, per_head},
        Size{16, 1, 17, 8, 1, true, true, none}, Size{16, 3, 33, 32, 1, true, false, shared},
        Size{5, 1, 64, 64, 1, true, true, per_head}, Size{5, 2, 64, 16, -1, false, false, per_head},
        Size{200, 4, 24, 20, 1, true, true, per_head, true},
        Size{130, 6, 64, 64, -1, false, false, none, true},
        Size{37, 3, 16, 16, 1, true, true, per_head, true},
        Size{70, 8, 64, 64, -1, true, false, per_head, true},
        Size{9, 2, 128, 128, 1, true, true, per_head, true},
        Size{21, 5, 32, 32, 1, true, true, per_head, true}, Size{21, 5, 32, 32, 1, true, true, shared, true},
        Size{70, 8, 64, 64, -1, true, false, shared, true}}) {
    const std::int64_t positions = s.N + 3;
    Values gain = s.gain == none ? absent() : fill.vector(s.gain == shared ? 1 : s.H);
    Values weight = s.weight ? fill.vector(s.D) : absent();
    cases.push_back({fmt::format("N={} H={} D={} R={} direction={}{}{}{}", s.N, s.H, s.D, s.R, s.direction,
                                 s.norm ? " norm" : "", s.weight ? " weight" : "",
                                 s.gain == none     ? ""
                                 : s.gain == shared ? " gain"
                                                    : " gains"),
                     {fill.rows(s.N, s.H * s.D), column(fill.draws(s.N, positions)),
                      rotation_table(positions, s.R, s.direction), gain, weight},
                     RopeAttributes{static_cast<std::int32_t>(s.H), s.norm, 1e-6f}});
    // One gain for all heads: its gradient sums N H D terms of both signs, and their errors add up.
    const double many_terms = std::sqrt(static_cast<double>(s.N * s.H * s.D));
    cases.back().min_scale = s.gain != shared ? 0 : s.large ? many_terms : kOneSum;
    cases.back().large = s.large;
  }
  return cases;
}

struct HeadSize {
  std::int64_t N, H, K, D, document;  // about one row in `document` starts a document
  bool large = false;
  std::int32_t window = 0;
  float softcap = 0;

  std::string text() const {
    return fmt::format("N={} H={} K={} D={} documents of {}{}{}", N, H, K, D, document,
                       window > 0 ? fmt::format(" window={}", window) : "",
                       softcap > 0 ? fmt::format(" softcap={}", softcap) : "");
  }
};

inline std::vector<OpCase> attention_cases() {
  Fill fill(&op::kAttention);
  std::vector<OpCase> cases;
  for (const HeadSize& s :
       {HeadSize{1, 1, 1, 1, 9}, HeadSize{2, 2, 1, 3, 9}, HeadSize{5, 4, 2, 8, 3}, HeadSize{16, 2, 2, 17, 5},
        HeadSize{16, 3, 1, 4, 100}, HeadSize{37, 2, 1, 8, 8}, HeadSize{9, 1, 1, 33, 100},
        HeadSize{300, 4, 2, 16, 70, true}, HeadSize{150, 3, 3, 17, 1000, true},
        HeadSize{130, 4, 1, 64, 40, true}, HeadSize{5, 2, 1, 4, 9, false, 1},
        HeadSize{16, 2, 1, 16, 7, false, 3}, HeadSize{16, 2, 2, 8, 100, false, 0, 0.75f},
        HeadSize{37, 4, 2, 16, 20, false, 9, 1.5f}, HeadSize{300, 4, 2, 16, 170, true, 64},
        HeadSize{290, 2, 1, 32, 1000, true, 70}, HeadSize{1100, 1, 1, 8, 5000, true, 130, 2},
        HeadSize{75, 2, 1, 256, 50, true, 40, 3}, HeadSize{70, 1, 1, 144, 50, true}}) {
    cases.push_back({s.text(),
                     {fill.rows(s.N, s.H * s.D), fill.rows(s.N, s.K * s.D), fill.rows(s.N, s.K * s.D),
                      column(fill.first_rows(s.N, s.document))},
                     AttentionAttributes{static_cast<std::int32_t>(s.H), static_cast<std::int32_t>(s.K),
                                         static_cast<float>(1 / std::sqrt(static_cast<double>(s.D))),
                                         s.softcap, s.window}});
    cases.back().large = s.large;
    if (s.N == 1 || s.window == 1) cases.back().min_scale = 1;  // a softmax over one row: dq and dk are zero
  }
  return cases;
}

inline std::vector<OpCase> exclusive_attention_cases() {
  Fill fill(&op::kExclusiveAttention);
  std::vector<OpCase> cases;
  for (const HeadSize& s : {HeadSize{1, 1, 1, 2, 1}, HeadSize{2, 2, 1, 3, 1}, HeadSize{5, 4, 2, 8, 1},
                            HeadSize{16, 3, 3, 17, 1}, HeadSize{37, 2, 1, 33, 1}, HeadSize{5, 2, 1, 64, 1},
                            HeadSize{5, 2, 1, 1, 1}, HeadSize{200, 6, 2, 16, 1, true}}) {
    cases.push_back({fmt::format("N={} H={} K={} D={}", s.N, s.H, s.K, s.D),
                     {fill.rows(s.N, s.H * s.D), fill.rows(s.N, s.K * s.D)},
                     ExclusiveAttributes{static_cast<std::int32_t>(s.H), static_cast<std::int32_t>(s.K)}});
    cases.back().large = s.large;
    if (s.D == 1) cases.back().min_scale = 1;  // with one column, the projection is all of y
  }
  return cases;
}

// Slots in the middle of a prompt, at its start, and decoding. The caches hold earlier rows.
inline std::vector<OpCase> cached_attention_cases() {
  struct Block {
    std::int32_t slot, begin, rows;
  };
  struct Size {
    std::int64_t H, K, D;
    std::int32_t context;
    std::vector<Block> blocks;
    bool large = false;
    std::int32_t window = 0;
    float softcap = 0;
  };
  Fill fill(&op::kCachedAttention);
  std::vector<OpCase> cases;
  for (const Size& s :
       {Size{1, 1, 1, 1, {{0, 0, 1}}}, Size{2, 1, 3, 4, {{0, 3, 1}, {2, 0, 1}}},
        Size{4, 2, 8, 9, {{1, 0, 5}, {0, 8, 1}, {2, 4, 1}}}, Size{3, 3, 17, 20, {{0, 7, 9}, {1, 19, 1}}},
        Size{6, 2, 33, 40, {{2, 0, 37}, {0, 30, 1}}}, Size{2, 1, 64, 70, {{0, 64, 2}, {3, 69, 1}}},
        Size{2, 1, 128, 70, {{0, 64, 2}, {3, 69, 1}}},
        Size{4, 2, 16, 300, {{1, 0, 200}, {0, 299, 1}, {2, 130, 3}}, true},
        Size{2, 1, 3, 12, {{0, 9, 2}, {2, 0, 5}}, false, 3}, Size{2, 2, 16, 12, {{0, 11, 1}}, false, 1},
        Size{4, 2, 16, 30, {{1, 0, 20}, {3, 29, 1}}, false, 7, 1.25f},
        Size{3, 1, 17, 30, {{1, 0, 20}, {3, 29, 1}}, false, 0, 0.75f},
        Size{4, 2, 16, 300, {{1, 0, 200}, {0, 299, 1}, {2, 130, 3}}, true, 65},
        Size{4, 1, 33, 300, {{1, 60, 100}, {0, 299, 1}, {2, 130, 3}}, true, 64, 2},
        Size{8, 2, 64, 300, {{1, 60, 100}, {0, 299, 1}, {2, 130, 3}}, true, 100, 2},
        Size{4, 1, 256, 150, {{1, 20, 90}, {0, 149, 1}, {2, 100, 3}}, true, 50, 2},
        // Rings: positions past the context.
        Size{4, 2, 16, 64, {{1, 100, 30}, {0, 64, 1}, {2, 30, 3}}, false, 20},
        Size{2, 1, 17, 64, {{1, 100, 30}, {0, 64, 1}, {2, 700, 3}}, false, 20, 2},
        Size{4, 2, 32, 192, {{1, 150, 100}, {0, 1000, 1}, {2, 300, 3}}, true, 90}}) {
    constexpr std::int64_t kSlots = 4;
    Integers slot, position;
    for (const Block& block : s.blocks)
      for (std::int32_t row = 0; row < block.rows; ++row) {
        slot.push_back(block.slot);
        position.push_back(block.begin + row);
      }
    const auto N = static_cast<std::int64_t>(slot.size());
    cases.push_back({fmt::format("N={} H={} K={} D={} context={} window={} softcap={}", N, s.H, s.K, s.D,
                                 s.context, s.window, s.softcap),
                     {fill.rows(N, s.H * s.D), fill.rows(N, s.K * s.D), fill.rows(N, s.K * s.D), column(slot),
                      column(position), fill.rows(kSlots * s.context, s.K * s.D),
                      fill.rows(kSlots * s.context, s.K * s.D)},
                     CachedAttentionAttributes{
                         static_cast<std::int32_t>(s.H), static_cast<std::int32_t>(s.K), s.context,
                         static_cast<float>(1 / std::sqrt(static_cast<double>(s.D))), s.softcap, s.window}});
    cases.back().inference = true;
    cases.back().large = s.large;
  }
  return cases;
}

}  // namespace thimble
