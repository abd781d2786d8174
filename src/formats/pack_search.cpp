#include "formats/pack_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/table.h"

namespace thimble {

namespace {

constexpr int kHalvings = 7;  // of a clip's logarithm: to 3 %
constexpr float kFinest = 4, kCoarsest = 64;
constexpr double kAim = 0.99;  // of the room: the size model errs by about 1 %

QuantiseRule rule_with(int bits, float clip) {
  return clip > 0 ? QuantiseRule{.bits = bits, .clip = Clip::deviation, .deviations = clip}
                  : QuantiseRule{.bits = bits};
}

class Search {
 public:
  Search(const ModelFile& source, const PackRequest& request, const SearchSpace& space,
         const PackScore& score, const ProgressOutput& progress, const Interrupt* interrupt)
      : source_(source),
        request_(request),
        space_(space),
        score_(score),
        interrupt_(interrupt),
        estimator_(source, request),
        bar_(progress, "searching", "rules", 0) {}

  SearchResult run() {
    const std::size_t planned = space_.bits.size() * space_.prunes.size() * (space_.clips.size() + 1);
    bar_.expect(planned + space_.measured);
    for (const int bits : space_.bits)
      for (const double prune : space_.prunes) {
        for (const float clip : space_.clips) estimate(rule_with(bits, clip), prune);
        estimate(rule_with(bits, finest_that_fits(bits, prune)), prune);
      }
    std::ranges::stable_sort(tries_, {}, &SearchTry::error);
    measure();
    return finish();
  }

 private:
  void estimate(const QuantiseRule& rule, double prune) {
    if (interrupt_) interrupt_->throw_if_asked();
    const bool known =
        std::ranges::any_of(tries_, [&](const SearchTry& t) { return t.rule == rule && t.prune == prune; });
    if (!known) tries_.push_back(tried(rule, prune));
    bar_.advance(1);
  }

  SearchTry tried(const QuantiseRule& rule, double prune) {
    const PackEstimate estimate = estimator_.estimate(rule, prune);
    return {.rule = rule, .prune = prune, .predicted_bytes = estimate.bytes, .error = estimate.error};
  }

  // Rows clipped nearer are cut finer: the size falls as the clip grows.
  float finest_that_fits(int bits, double prune) {
    const auto fits = [&](float clip) {
      if (interrupt_) interrupt_->throw_if_asked();
      const auto bytes = static_cast<double>(estimator_.estimate(rule_with(bits, clip), prune).bytes);
      return bytes <= kAim * static_cast<double>(request_.budget);
    };
    float fine = kFinest, coarse = kCoarsest;
    if (fits(fine)) return fine;
    for (int i = 0; i < kHalvings; ++i) {
      const float middle = std::sqrt(fine * coarse);
      (fits(middle) ? coarse : fine) = middle;
    }
    return std::round(coarse * 100) / 100;
  }

  void measure() {
    std::size_t measured = 0;
    for (SearchTry& t : tries_) {
      if (measured == space_.measured) break;
      if (t.predicted_bytes > request_.budget) continue;
      ++measured;
      PackRequest request = request_;
      request.options.rule = t.rule;
      request.options.prune = t.prune;
      PackResult packed = pack_model(source_, request, ProgressOutput::nowhere(), interrupt_);
      t.bytes = packed.report.self_contained_bytes();
      if (packed.report.fits()) {
        t.score = score_(packed.loaded);
        if (!best_ || *t.score < best_->score) best_.emplace(Best{*t.score, std::move(packed)});
      }
      bar_.advance(1);
    }
  }

  SearchResult finish() {
    const auto smallest = std::ranges::min_element(tries_, {}, &SearchTry::predicted_bytes);
    check(best_.has_value(), Hint{"a larger --budget, or a smaller model"},
          "no rule fits: the smallest takes about {} bytes, the budget is {}",
          with_commas(static_cast<long long>(smallest->predicted_bytes)),
          with_commas(static_cast<long long>(request_.budget)));
    const auto rank = [](const SearchTry& t) { return t.score ? 0 : t.bytes ? 1 : 2; };
    std::ranges::stable_sort(tries_, [&](const SearchTry& a, const SearchTry& b) {
      return rank(a) != rank(b) ? rank(a) < rank(b) : a.score && *a.score < *b.score;
    });
    return {.tries = std::move(tries_), .best = 0, .packed = std::move(best_->packed)};
  }

  struct Best {
    double score;
    PackResult packed;
  };

  const ModelFile& source_;
  const PackRequest& request_;
  const SearchSpace& space_;
  const PackScore& score_;
  const Interrupt* interrupt_;
  PackEstimator estimator_;
  ProgressBar bar_;
  std::vector<SearchTry> tries_;
  std::optional<Best> best_;
};

}  // namespace

SearchResult search_packing(const ModelFile& source, const PackRequest& request, const SearchSpace& space,
                            const PackScore& score, const ProgressOutput& progress,
                            const Interrupt* interrupt) {
  return Search(source, request, space, score, progress, interrupt).run();
}

}  // namespace thimble
