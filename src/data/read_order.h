// The orders in which training data is read, and the packing of documents into rows.
//
// Packing puts complete documents into rows of T tokens with little padding, for chats and other
// short documents. It is best-fit decreasing: longest document first, each into the fullest row
// that has room for it. The packing depends only on the documents and T.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "data/token_set.h"

namespace thimble {

// How a document longer than a row is handled.
enum class LongDocuments {
  cut,       // into pieces of T, isolated from each other; every token is still predicted once
  truncate,  // keep the first T tokens
};

struct Piece {
  std::uint64_t begin = 0;   // in the token set
  std::uint32_t length = 0;  // tokens that are inputs
  bool operator==(const Piece&) const = default;
};

class Packing {
 public:
  // Skips documents that contain only bos. Reads all tokens once.
  Packing(const TokenSet& set, std::int64_t T, LongDocuments long_documents);

  std::uint64_t rows() const { return row_begin_.size() - 1; }
  std::span<const Piece> row(std::uint64_t i) const;

  std::int64_t T() const { return T_; }
  std::uint64_t tokens() const { return tokens_; }                  // in all rows, without padding
  std::uint64_t long_documents() const { return long_documents_; }  // that were cut or truncated
  double padding() const;  // fraction of row positions that are padding

 private:
  void cut_documents(const TokenSet& set, LongDocuments long_documents);
  std::vector<std::uint32_t> fit_pieces(std::span<const std::uint32_t> longest_first);

  std::int64_t T_;
  std::vector<Piece> pieces_;             // row after row
  std::vector<std::uint64_t> row_begin_;  // [rows + 1] into pieces_
  std::uint64_t tokens_ = 0, long_documents_ = 0;
};

// The order in which a training set is read. The state of every order is a ReadPosition.
enum class ReadOrder {
  sequential,  // windows of T tokens, one after the other
  shuffled,    // the same windows, in a different order each epoch
  shifted,     // shuffled, and all windows begin a random number of tokens later in each later epoch
  golf,        // as train_gpt.py: consecutive spans of n + 1 tokens; the set is a ring
  golf_mlx,    // as train_gpt_mlx.py: the spans cut into sub-batches that take n + 1 tokens each
  packed,      // complete documents packed into rows, rows shuffled
};

std::string_view name_of(ReadOrder order);          // "golf-mlx"
ReadOrder read_order_named(std::string_view name);  // throws for an unknown name

// Element i of a permutation of [0, count) that depends only on (seed, epoch): a Feistel network
// over the next power of four, applied repeatedly until the value is in range. It stores no table,
// and any element is computed in constant expected time.
std::uint64_t permuted(std::uint64_t i, std::uint64_t count, std::uint64_t seed, std::uint64_t epoch);

// Where reading continues. `next` counts windows or rows within the epoch; for golf orders, tokens.
struct ReadPosition {
  std::uint64_t epoch = 0, next = 0;
  bool operator==(const ReadPosition&) const = default;
};

struct RowSettings {
  ReadOrder order = ReadOrder::shuffled;
  std::int64_t T = 0;
  std::int64_t step_rows = 0;  // rows of one optimizer step, over all ranks
  std::uint64_t seed = 0;
  std::int64_t span_tokens = 0;                       // golf orders; 0: the step is one span
  std::int64_t sub_batch_tokens = 8192;               // golf_mlx: MLX_MAX_MICROBATCH_TOKENS
  LongDocuments long_documents = LongDocuments::cut;  // packed
};

class RowReader {
 public:
  virtual ~RowReader() = default;

  // Appends the rows of the step that starts at `position`, and advances it to the next step.
  virtual void read_step(ReadPosition& position, Grid& grid) const = 0;

  // Upper bound (exclusive) of ReadPosition::next.
  virtual std::uint64_t units_per_epoch() const = 0;
  virtual std::uint64_t tokens_per_epoch() const = 0;  // read per epoch, without padding
  virtual double padding() const { return 0; }         // fraction of row positions that are padding

  // Row counts of the groups of a step, in order. Group g is computed by rank g % ranks.
  virtual std::vector<std::int64_t> groups() const = 0;
};

// `set` must outlive the reader. Throws if the settings are inconsistent.
std::unique_ptr<RowReader> make_row_reader(const TokenSet& set, const RowSettings& settings);

}  // namespace thimble
