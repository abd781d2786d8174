#include "data/data_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/table.h"

namespace thimble {

namespace {

constexpr double kWantedTokensPerParameter = 10;

double ratio(std::uint64_t a, std::uint64_t b) {
  return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 0;
}

std::string counted(std::uint64_t value) {
  return with_commas(static_cast<long long>(value));
}

}  // namespace

double DataFacts::epochs() const {
  return ratio(tokens_to_see, tokens);
}

double DataFacts::tokens_per_parameter() const {
  return ratio(tokens_to_see, parameters);
}

std::string data_table(const DataFacts& facts) {
  Table table;
  if (facts.documents > 0) table.row({"documents", counted(facts.documents)});
  table.row({"tokens", counted(facts.tokens)});
  if (facts.bytes > 0)
    table.row({"bytes per token", fmt::format("{:.2f}", ratio(facts.bytes, facts.tokens))});
  if (facts.tokens_to_see > 0) table.row({"tokens to be seen", counted(facts.tokens_to_see)});
  table.row({"parameters", counted(facts.parameters)});
  if (facts.tokens_to_see == 0) return table.text();
  table.row({"tokens per parameter", fmt::format("{:.2f}", facts.tokens_per_parameter())});
  table.row({"epochs", fmt::format("{:.2f}", facts.epochs())});
  return table.text();
}

std::string data_warning(const DataFacts& facts) {
  const std::uint64_t seen = facts.tokens_to_see > 0 ? facts.tokens_to_see : facts.tokens;
  const double different = ratio(std::min(facts.tokens, seen), facts.parameters);
  if (different >= kWantedTokensPerParameter) return {};
  const double wanted = kWantedTokensPerParameter * static_cast<double>(facts.parameters);
  const bool scarce = static_cast<double>(facts.tokens) < wanted;
  return fmt::format(
      "the model will see {:.2g} different tokens per parameter; with fewer than {} it tends to learn its "
      "text by heart. {}",
      different, kWantedTokensPerParameter,
      scarce ? fmt::format(
                   "Give it more text (about {} tokens), make it smaller (about {} parameters), or start "
                   "from a trained model with --init.",
                   with_unit(wanted), with_unit(static_cast<double>(facts.tokens) / 10))
             : fmt::format("There is text enough: train longer (about {} tokens), or make the model smaller.",
                           with_unit(wanted)));
}

}  // namespace thimble
