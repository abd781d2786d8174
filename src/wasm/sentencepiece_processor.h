// What tokenizer/sentencepiece.cpp uses of libsentencepiece, without that library and protobuf,
// which would be a tenth of the runtime. The ids are the library's (0.1.97), which
// tests/interop/browser_tokenizers.test.js compares. Training, n-best lists and sampling are left
// out. <sentencepiece_trainer.h> of the build folder includes this header, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sentencepiece {

namespace util {

class Status {
 public:
  Status() = default;
  explicit Status(std::string problem) : problem_(std::move(problem)) {}
  bool ok() const { return problem_.empty(); }
  const std::string& ToString() const { return problem_; }

 private:
  std::string problem_;
};

}  // namespace util

class SentencePieceProcessor {
 public:
  // `model` must outlive this object. Its tables of characters must have been checked
  // (charsmap_is_valid).
  util::Status LoadFromSerializedProto(std::string_view model);

  int GetPieceSize() const { return static_cast<int>(pieces_.size()); }
  const std::string& IdToPiece(int id) const { return pieces_[static_cast<std::size_t>(id)].text; }
  int PieceToId(std::string_view piece) const;
  bool IsControl(int id) const { return type_of(id) == kControl; }
  bool IsUnknown(int id) const { return type_of(id) == kUnknown; }
  bool IsUnused(int id) const { return type_of(id) == kUnused; }
  bool IsByte(int id) const { return type_of(id) == kByte; }
  int bos_id() const { return special_id(bos_, kControl); }
  int eos_id() const { return special_id(eos_, kControl); }
  int unk_id() const { return special_id(unk_, kUnknown); }
  int pad_id() const { return special_id(pad_, kControl); }

  util::Status Encode(std::string_view text, std::vector<int>* ids) const;

 private:
  enum Type { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };
  enum Kind { kUnigram = 1, kBpe, kWord, kChar };
  struct Piece {
    std::string text = {};
    float score = 0;
    Type type = kNormal;
  };
  // A part of the normalized text and its id.
  using Found = std::vector<std::pair<std::string_view, int>>;
  struct Prefix {
    std::string_view text;
    std::size_t bytes;
  };

  Type type_of(int id) const { return pieces_[static_cast<std::size_t>(id)].type; }
  int special_id(const std::string& name, Type type) const;
  void read(std::string_view model);
  util::Status index();
  std::size_t user_defined_at(std::string_view text) const;
  Prefix normalized_prefix(std::string_view text) const;
  std::string normalized(std::string_view text) const;
  Found bpe(std::string_view text) const;
  Found unigram(std::string_view text) const;
  Found words(std::string_view text) const;
  Found characters(std::string_view text) const;

  std::vector<Piece> pieces_;
  // `text_ids_` finds pieces of texts; `reserved_ids_` control, unknown and byte pieces.
  std::unordered_map<std::string_view, int> text_ids_, reserved_ids_;
  std::vector<std::string_view> user_defined_;  // longest first
  std::size_t longest_piece_ = 0;
  int unknown_ = -1;
  int kind_ = kUnigram;
  std::string unk_ = "<unk>", bos_ = "<s>", eos_ = "</s>", pad_ = "<pad>";
  bool byte_fallback_ = false, space_as_suffix_ = false;
  bool add_dummy_prefix_ = true, remove_extra_spaces_ = true, escape_spaces_ = true;
  std::string_view trie_, replacements_;  // the normalizer's table
};

class SentenceIterator {
 public:
  virtual ~SentenceIterator() = default;
  virtual bool done() const = 0;
  virtual void Next() = 0;
  virtual const std::string& value() const = 0;
  virtual util::Status status() const = 0;
};

struct SentencePieceTrainer {
  static util::Status Train(const std::unordered_map<std::string, std::string>&, SentenceIterator*,
                            std::string*) {
    return util::Status("this runtime reads only models written by `thimble export`");
  }
};

}  // namespace sentencepiece
