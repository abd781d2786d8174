#include "data/difficulty.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace thimble {

namespace {

constexpr std::size_t kMostFiles = 32;    // of a folder that are read
constexpr std::uint64_t kHeldOutOf = 10;  // one document, or one byte, of so many is held out
constexpr std::size_t kCountedBytes = std::size_t{1} << 20, kScoredBytes = std::size_t{256} << 10;
constexpr std::size_t kPieces = 16;

// Files that are spread evenly over the source.
std::vector<std::filesystem::path> chosen_files(const DataSource& source) {
  const std::size_t all = source.files.size(), count = std::min(all, kMostFiles);
  std::vector<std::filesystem::path> files;
  for (std::size_t i = 0; i < count; ++i) files.push_back(source.files[i * all / count]);
  return files;
}

// Whether a text is stored as it is.
bool is_plain(const std::filesystem::path& file) {
  return &form_of(file, false) == &text_form() && file.extension() != ".zst" && file.extension() != ".gz";
}

// The documents of the sample, each one complete or cut at the end of the sample.
struct SampledDocuments {
  std::vector<std::string> documents;
  std::uint64_t bytes = 0;
  double stored_bytes = 0;  // that were read for them
  bool is_complete = true;
};

SampledDocuments read_documents(const DataSource& source, const ReadOptions& read, const Interrupt& interrupt,
                                std::uint64_t most_bytes) {
  const std::vector<std::filesystem::path> files = chosen_files(source);
  const std::uint64_t share = std::max<std::uint64_t>(1, most_bytes / std::max<std::size_t>(1, files.size()));
  SampledDocuments sampled;
  sampled.is_complete = files.size() == source.files.size();
  for (const std::filesystem::path& file : files) {
    interrupt.throw_if_interrupted();
    ContentsStream stream({file}, read.kind, {.split = read.split, .max_piece_bytes = share}, &interrupt,
                          read.text_field);
    std::uint64_t taken = 0;
    bool ended = false;
    while (taken < share) {
      const auto piece = stream.next();
      if (!piece) {
        ended = true;
        break;
      }
      if (piece->starts || sampled.documents.empty()) sampled.documents.emplace_back();
      sampled.documents.back() += piece->text;
      taken += piece->text.size();
    }
    sampled.bytes += taken;
    const bool is_cut = !ended && stream.next().has_value();
    sampled.is_complete = sampled.is_complete && !is_cut;
    // A reader reads ahead, which makes the estimate for a compressed or JSON file a little low.
    const std::uint64_t stored = !is_cut          ? stream.stored_bytes()
                                 : is_plain(file) ? taken
                                                  : stream.stored_bytes_read();
    sampled.stored_bytes += static_cast<double>(stored);
  }
  return sampled;
}

double stored_bytes_of(const DataSource& source) {
  double bytes = 0;
  for (const std::filesystem::path& file : source.files) {
    std::error_code missing;
    const auto size = std::filesystem::file_size(file, missing);
    if (!missing) bytes += static_cast<double>(size);
  }
  return bytes;
}

}  // namespace

SampledText sample_text(const DataSource& source, const ReadOptions& read, const Interrupt& interrupt,
                        std::uint64_t most_bytes) {
  const SampledDocuments sampled = read_documents(source, read, interrupt, most_bytes);
  SampledText sample;
  sample.is_complete = sampled.is_complete;
  const double scale = sampled.is_complete || sampled.stored_bytes <= 0
                           ? 1
                           : std::max(1.0, stored_bytes_of(source) / sampled.stored_bytes);
  sample.bytes = scale * static_cast<double>(sampled.bytes);
  sample.documents = std::round(scale * static_cast<double>(sampled.documents.size()));
  // As in `data build`: whole documents if there are many, else the end of each. A part of a few
  // long documents has fewer than the complete text.
  const bool many = sample.documents >= 2 * kHeldOutOf && sampled.documents.size() > 1;
  const std::uint64_t of = std::min<std::uint64_t>(kHeldOutOf, (sampled.documents.size() + 1) / 2);
  std::uint64_t number = 0;
  for (const std::string& text : sampled.documents) {
    // The remainder avoids a rhythm in the order of the documents.
    const bool held_out = many && (++number * 7919) % of == 0;
    const std::size_t end = many ? (held_out ? 0 : text.size()) : text.size() - text.size() / kHeldOutOf;
    if (end > 0) sample.train.append(text, 0, end).append("\n");
    if (end < text.size()) sample.held_out.append(text, end).append("\n");
  }
  return sample;
}

namespace {

constexpr std::size_t kOrders = 6;  // contexts of 0 to 5 bytes

// Counts of contexts and of (context, byte) pairs in one open-addressing table. A 64-bit hash
// stands for the text; collisions are rare enough not to matter.
class NgramCounts {
 public:
  struct Cell {
    std::uint64_t key = 0;
    std::uint32_t count = 0;
    std::uint32_t followers = 0;  // different bytes after a context
  };
  using Keys = std::array<std::uint64_t, kOrders>;

  // The contexts before text[at]; as many as there are bytes. Returns their number.
  static std::size_t contexts(std::string_view text, std::size_t at, Keys& keys) {
    std::uint64_t hash = 1;
    std::size_t order = 0;
    for (; order < kOrders && order <= at; ++order) {
      if (order > 0) hash = mixed(hash, static_cast<unsigned char>(text[at - order]) + 1u);
      keys[order] = mixed(hash, 1000 + order);
    }
    return order;
  }

  void add(std::string_view text, std::size_t at) {
    Keys keys;
    const std::size_t orders = contexts(text, at, keys);
    for (std::size_t i = 0; i < orders; ++i) {
      const bool is_new = count(pair(keys[i], text[at])).count == 1;
      count(keys[i]).followers += is_new ? 1 : 0;
    }
  }

  // p_k(c) = (n(context c) + followers(context) p_{k-1}(c)) / (n(context) + followers(context))
  double probability(std::string_view text, std::size_t at) const {
    Keys keys;
    const std::size_t orders = contexts(text, at, keys);
    double p = 1.0 / 256;
    for (std::size_t i = 0; i < orders; ++i) {
      const Cell* context = find(keys[i]);
      if (!context) break;
      const Cell* seen = find(pair(keys[i], text[at]));
      p = ((seen ? seen->count : 0) + context->followers * p) / (context->count + context->followers);
    }
    return p;
  }

 private:
  static std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
    hash = (hash ^ (value + 0x9E3779B97F4A7C15u)) * 0xFF51AFD7ED558CCDu;
    return hash ^ (hash >> 32);
  }
  static std::uint64_t pair(std::uint64_t context, char next) {
    return mixed(context, static_cast<unsigned char>(next) + 7u);
  }
  std::size_t slot(std::uint64_t key) const {
    std::size_t at = (key >> 7) & (cells_.size() - 1);
    while (cells_[at].count > 0 && cells_[at].key != key) at = (at + 1) & (cells_.size() - 1);
    return at;
  }
  Cell& count(std::uint64_t key) {
    if (2 * used_ >= cells_.size()) grow();
    Cell& found = cells_[slot(key)];
    found.key = key;
    used_ += ++found.count == 1 ? 1 : 0;
    return found;
  }
  void grow() {
    std::vector<Cell> before(2 * cells_.size());
    before.swap(cells_);
    for (const Cell& cell : before)
      if (cell.count > 0) cells_[slot(cell.key)] = cell;
  }
  const Cell* find(std::uint64_t key) const {
    const Cell& found = cells_[slot(key)];
    return found.count > 0 ? &found : nullptr;
  }

  std::vector<Cell> cells_ = std::vector<Cell>(1 << 12);
  std::size_t used_ = 0;
};

// At most `bytes` of the text, as pieces that are spread over it.
std::vector<std::string_view> spread(std::string_view text, std::size_t bytes) {
  const std::size_t pieces = text.size() <= bytes ? 1 : kPieces;
  std::vector<std::string_view> all;
  for (std::size_t i = 0; i < pieces; ++i)
    all.push_back(text.substr(text.size() / pieces * i, std::min(text.size(), bytes) / pieces));
  return all;
}

}  // namespace

double ngram_bits_per_byte(std::string_view train, std::string_view held_out) {
  NgramCounts counts;
  for (const std::string_view text : spread(train, kCountedBytes))
    for (std::size_t i = 0; i < text.size(); ++i) counts.add(text, i);
  double bits = 0;
  std::size_t scored = 0;
  for (const std::string_view text : spread(held_out, kScoredBytes)) {
    for (std::size_t i = 0; i < text.size(); ++i) bits -= std::log2(counts.probability(text, i));
    scored += text.size();
  }
  return scored > 0 ? std::min(8.0, bits / static_cast<double>(scored)) : 8;
}

}  // namespace thimble
