// Whole documents packed into rows of T tokens, with little left over: for chats and other short documents.
//
// Best fit, longest document first: each goes into the row with the least room that still holds it. The plan
// depends on the documents and T alone; which row comes when is the reader's business.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "data/token_set.h"

namespace thimble {

// What becomes of a document that is longer than a row.
enum class LongDocuments {
  cut,       // pieces of T, each isolated; every token is still predicted once
  truncate,  // its first T tokens
};

struct Piece {
  std::uint64_t begin = 0;   // in the token set
  std::uint32_t length = 0;  // tokens that are inputs
  bool operator==(const Piece&) const = default;
};

class Packing {
 public:
  // Documents of bos alone are left out. Reads all tokens once.
  Packing(const TokenSet& set, std::int64_t T, LongDocuments long_documents);

  std::uint64_t rows() const { return row_begin_.size() - 1; }
  std::span<const Piece> row(std::uint64_t i) const;

  std::int64_t T() const { return T_; }
  std::uint64_t tokens() const { return tokens_; }                  // in all rows, padding not counted
  std::uint64_t long_documents() const { return long_documents_; }  // that were cut or truncated
  double padding() const;                                           // fraction of all places

 private:
  void cut_documents(const TokenSet& set, LongDocuments long_documents);
  std::vector<std::uint32_t> fit_pieces(std::span<const std::uint32_t> longest_first);

  std::int64_t T_;
  std::vector<Piece> pieces_;             // row after row
  std::vector<std::uint64_t> row_begin_;  // [rows + 1] into pieces_
  std::uint64_t tokens_ = 0, long_documents_ = 0;
};

// In which order a training set is read. Whatever the order, the state is two numbers.
enum class ReadOrder {
  sequential,  // windows of T, one after the other
  shuffled,    // the same windows, in another order each epoch
  golf,      // train_gpt.py: spans of n + 1 tokens one after the other, round and round (parameter-golf 1.6)
  golf_mlx,  // train_gpt_mlx.py: the spans cut into sub-batches that take n + 1 tokens each (1.10)
  packed,    // whole documents packed into rows, rows shuffled
};

std::string_view name_of(ReadOrder order);          // "golf-mlx"
ReadOrder read_order_named(std::string_view name);  // an unknown name is an error with the nearest one

// Element i of a permutation of [0, count) that depends on (seed, epoch) alone: a Feistel network over the
// next power of four, walked until it lands inside. Nothing is stored, any element is found at once.
std::uint64_t permuted(std::uint64_t i, std::uint64_t count, std::uint64_t seed, std::uint64_t epoch);

// Which tokens the rows of a step hold, order by order. Everything is a function of the position.
// Where reading goes on. `next` counts windows or packed rows within the epoch; for the golf orders, tokens.
struct ReadPosition {
  std::uint64_t epoch = 0, next = 0;
  bool operator==(const ReadPosition&) const = default;
};

struct RowSettings {
  ReadOrder order = ReadOrder::shuffled;
  std::int64_t T = 0;
  std::int64_t step_rows = 0;  // rows of one optimizer step, of all ranks together
  std::uint64_t seed = 0;
  std::int64_t span_tokens = 0;                       // golf orders; 0: the whole step is one span
  std::int64_t sub_batch_tokens = 8192;               // golf_mlx: MLX_MAX_MICROBATCH_TOKENS
  LongDocuments long_documents = LongDocuments::cut;  // packed
};

class RowReader {
 public:
  virtual ~RowReader() = default;

  // Appends the rows of the step that starts at `position`, and moves it to the next step.
  virtual void read_step(ReadPosition& position, Grid& grid) const = 0;

  // `next` of a position is below this.
  virtual std::uint64_t units_per_epoch() const = 0;
  virtual std::uint64_t tokens_per_epoch() const = 0;  // that are read, padding not counted
  virtual double padding() const { return 0; }         // fraction of places in rows that hold nothing

  // The rows of a step in groups that stay on one rank: row counts, in order. Group g is rank g mod ranks's.
  virtual std::vector<std::int64_t> groups() const = 0;
};

// `set` must outlive the reader. Settings that do not fit together are errors.
std::unique_ptr<RowReader> make_row_reader(const TokenSet& set, const RowSettings& settings);

}  // namespace thimble
