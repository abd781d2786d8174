#include "data/parquet.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/text.h"
#include "data/parquet_format.h"

namespace thimble {

namespace fs = std::filesystem;
using namespace parquet;

namespace {

constexpr std::string_view kMagic = "PAR1", kEncryptedMagic = "PARE";
constexpr std::uint64_t kMaxFooterBytes = 64 << 20, kMaxHeaderBytes = 16 << 20;
constexpr std::uint64_t kMaxRowBytes = 64 << 20, kMaxRowValues = 1 << 20;

// A column of strings.
struct Leaf {
  std::string path;       // "messages.list.element.role"
  std::size_t chunk = 0;  // index in a row group
  unsigned max_definition = 0, max_repetition = 0;
};

unsigned bits_for(unsigned most) {
  return static_cast<unsigned>(std::bit_width(most));
}

// The values of one column chunk, in order.
class ColumnValues {
 public:
  ColumnValues(const InputFile& file, const Chunk& chunk, const Leaf& leaf)
      : file_(file), chunk_(chunk), leaf_(leaf), at_(chunk.begin), left_(chunk.values) {
    check(chunk.type == kByteArray, "expected a chunk of strings, found one of type {}", chunk.type);
    check(!chunk.encrypted && !chunk.elsewhere, "the column is {}",
          chunk.encrypted ? "encrypted" : "stored in another file");
    check(chunk.begin >= kMagic.size() && chunk.begin <= file.size() &&
              chunk.bytes <= file.size() - chunk.begin,
          "expected a chunk in the file of {} bytes, found {} bytes from {} on", file.size(), chunk.bytes,
          chunk.begin);
  }

  struct Value {
    unsigned definition = 0, repetition = 0;
    std::string_view text = {};  // empty if null; valid until the next call
  };

  // Whether the next value, if there is one, belongs to the row of the last one.
  bool row_continues() {
    if (leaf_.max_repetition == 0 || left_ == 0) return false;
    return peek_repetition() > 0;
  }

  bool ended() const { return left_ == 0; }

  Value next() {
    check(left_ > 0, "expected more than {} values", chunk_.values);
    Value value{.repetition = peek_repetition()};
    peeked_.reset();
    value.definition = leaf_.max_definition > 0 ? definitions_.next() : 0;
    check(value.definition <= leaf_.max_definition, "expected a definition level of at most {}, found {}",
          leaf_.max_definition, value.definition);
    if (value.definition == leaf_.max_definition) value.text = strings_->next();
    --left_;
    --in_page_;
    return value;
  }

 private:
  unsigned peek_repetition() {
    while (in_page_ == 0) open_page();
    if (!peeked_) {
      peeked_ = leaf_.max_repetition > 0 ? repetitions_.next() : 0;
      check(*peeked_ <= leaf_.max_repetition, "expected a repetition level of at most {}, found {}",
            leaf_.max_repetition, *peeked_);
    }
    return *peeked_;
  }

  std::uint64_t left_in_chunk() const { return chunk_.begin + chunk_.bytes - at_; }

  std::string read(std::uint64_t bytes) const {
    std::string text(bytes, '\0');
    file_.read_at(at_, std::as_writable_bytes(std::span(text)));
    return text;
  }

  // Statistics in a header may contain complete strings, so its size is not known.
  PageHeader read_header() {
    for (std::uint64_t size = 1 << 14;; size *= 8) {
      const std::uint64_t available = std::min({size, left_in_chunk(), kMaxHeaderBytes});
      const std::string text = read(available);
      PageBytes bytes(text);
      try {
        PageHeader page = page_header(bytes);
        at_ += text.size() - bytes.rest().size();
        return page;
      } catch (const Error&) {
        if (available < size || available == kMaxHeaderBytes) throw;
      }
    }
  }

  void open_page() {
    check(left_in_chunk() > 0, "the pages end {} values before the promised {}", left_, chunk_.values);
    const PageHeader page = read_header();
    check(page.stored <= left_in_chunk(), "expected a page of {} bytes, {} are left in the chunk",
          page.stored, left_in_chunk());
    check(page.size <= kMaxPageBytes && page.stored <= kMaxPageBytes,
          Hint{"write the file with smaller pages"}, "a page of {} bytes is larger than the limit of {}",
          std::max(page.size, page.stored), kMaxPageBytes);
    const std::string stored = read(page.stored);
    at_ += page.stored;
    if (page.crc)
      check(*page.crc ==
                crc32(0, reinterpret_cast<const Bytef*>(stored.data()), static_cast<uInt>(stored.size())),
            "the checksum of a page is wrong: the file is damaged");
    if (page.type == kDictionaryPage)
      open_dictionary(page, stored);
    else if (page.type == kDataPage)
      open_data(page, stored);
    else if (page.type == kDataPage2)
      open_data2(page, stored);
    // Other pages are indices.
  }

  void open_dictionary(const PageHeader& page, std::string_view stored) {
    check(dictionary_.empty(), "expected one dictionary page, found another");
    const auto encoding = static_cast<Encoding>(page.encoding);
    check(encoding == Encoding::plain || encoding == Encoding::plain_dictionary,
          "the encoding {} of a dictionary is not supported", name_of(encoding));
    dictionary_text_ = decompressed(chunk_.codec, stored, page.size);
    dictionary_ = dictionary_strings(dictionary_text_, page.values);
    has_dictionary_ = true;
  }

  void open_data(const PageHeader& page, std::string_view stored) {
    page_ = decompressed(chunk_.codec, stored, page.size);
    PageBytes bytes(page_);
    const auto levels = [&](unsigned most, std::int64_t encoding) {
      if (most == 0) return HybridNumbers();
      check(encoding == static_cast<std::int64_t>(Encoding::rle),
            "the encoding {} of levels is not supported", name_of(static_cast<Encoding>(encoding)));
      return HybridNumbers(bytes.take(bytes.u32()), bits_for(most));
    };
    repetitions_ = levels(leaf_.max_repetition, page.repetition_encoding);
    definitions_ = levels(leaf_.max_definition, page.definition_encoding);
    open_values(page, bytes.rest());
  }

  // The levels of a version 2 page are not compressed.
  void open_data2(const PageHeader& page, std::string_view stored) {
    PageBytes bytes(stored);
    const std::string_view repetitions = bytes.take(page.repetition_bytes),
                           definitions = bytes.take(page.definition_bytes);
    const std::uint64_t levels = page.repetition_bytes + page.definition_bytes;
    check(levels <= page.size, "expected levels in a page of {} bytes, found {} bytes of them", page.size,
          levels);
    const bool packed = page.compressed && !bytes.rest().empty();
    page_ = std::string(repetitions) + std::string(definitions);
    page_ += decompressed(packed ? chunk_.codec : Codec::uncompressed, bytes.rest(),
                          packed ? page.size - levels : bytes.rest().size());
    const std::string_view all = page_;
    repetitions_ = HybridNumbers(all.substr(0, repetitions.size()), bits_for(leaf_.max_repetition));
    definitions_ =
        HybridNumbers(all.substr(repetitions.size(), definitions.size()), bits_for(leaf_.max_definition));
    open_values(page, all.substr(levels));
  }

  void open_values(const PageHeader& page, std::string_view bytes) {
    check(page.values <= left_, "expected {} more values, found a page of {}", left_, page.values);
    in_page_ = page.values;
    strings_ =
        open_strings(static_cast<Encoding>(page.encoding), bytes, has_dictionary_ ? &dictionary_ : nullptr);
  }

  const InputFile& file_;
  Chunk chunk_;
  const Leaf& leaf_;
  std::uint64_t at_;    // of the next page in the file
  std::uint64_t left_;  // values not returned yet
  std::uint64_t in_page_ = 0;
  std::string dictionary_text_, page_;
  std::vector<std::string_view> dictionary_;
  bool has_dictionary_ = false;
  HybridNumbers repetitions_, definitions_;
  std::optional<unsigned> peeked_;  // the repetition level of the next value
  std::unique_ptr<PageStrings> strings_;
};

// The values of one row of one column.
struct RowValues {
  struct Value {
    unsigned definition, repetition;
    std::size_t begin, size;
  };
  std::vector<Value> values;
  std::string text;

  void read(ColumnValues& column) {
    values.clear();
    text.clear();
    do {
      const ColumnValues::Value value = column.next();
      check(values.empty() == (value.repetition == 0), "expected the start of a row");
      check(values.size() < kMaxRowValues && text.size() + value.text.size() <= kMaxRowBytes,
            "a row has more than {} values or {} bytes", kMaxRowValues, kMaxRowBytes);
      values.push_back({value.definition, value.repetition, text.size(), value.text.size()});
      text += value.text;
    } while (column.row_continues());
  }
};

// A part of the schema that contains strings. A list is two or three levels of groups; only one of
// them is visible in JSON.
struct Node {
  std::string name;
  bool optional = false, repeated = false;
  bool transparent = false;  // stands for its only child
  unsigned definition = 0, repetition = 0;
  std::size_t first_leaf = 0, leaves = 0;
  std::vector<Node> children = {};  // empty: a leaf
};

// Builds the tree of the columns that `wanted` accepts.
class SchemaTree {
 public:
  SchemaTree(const std::vector<SchemaElement>& schema, std::string_view only) : schema_(schema) {
    check(!schema.empty() && schema[0].children > 0, "the schema has no columns");
    next_ = 1;
    for (std::uint64_t i = 0; i < schema[0].children; ++i) {
      check(next_ < schema.size(), "the schema is incomplete");
      const SchemaElement& column = schema[next_];
      const bool is_only = !only.empty() && column.name == only;
      columns_.push_back(column.children > 0 ? column.name
                                             : fmt::format("{} ({})", column.name, type_of(column)));
      if (is_only && column.children == 0)
        check(column.type == kByteArray, "expected strings in the column \"{}\", found {}", only,
              type_of(column));
      only_ = is_only;
      const std::size_t leaves = leaves_.size();
      auto node = read({}, 0, 0, 0);
      if (node && is_only) {  // forget the columns before it, and do not read those after it
        nodes_.clear();
        leaves_.erase(leaves_.begin(), leaves_.begin() + static_cast<std::ptrdiff_t>(leaves));
        renumber(*node, leaves);
        found_ = true;
        nodes_.push_back(std::move(*node));
      } else if (node && !found_) {
        nodes_.push_back(std::move(*node));
      } else {
        leaves_.resize(leaves);
      }
    }
    check(next_ == schema.size(), "the schema has {} elements, expected {}", schema.size(), next_);
  }

  std::vector<Node> nodes() && { return std::move(nodes_); }
  const std::vector<Leaf>& leaves() const { return leaves_; }
  std::size_t chunks() const { return chunks_; }
  const std::vector<std::string>& columns() const { return columns_; }

 private:
  static std::string type_of(const SchemaElement& element) {
    constexpr std::array<std::string_view, 8> kNames = {
        "BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"};
    if (element.children > 0) return "a group";
    if (element.string) return "string";
    const bool known = element.type >= 0 && element.type < static_cast<std::int64_t>(kNames.size());
    return known ? std::string(kNames[static_cast<std::size_t>(element.type)])
                 : fmt::format("type {}", element.type);
  }

  static void renumber(Node& node, std::size_t removed) {
    node.first_leaf -= removed;
    for (Node& child : node.children) renumber(child, removed);
  }

  // Reads the element at next_ and those below it; nullopt if they contain no strings.
  std::optional<Node> read(const std::string& above, unsigned definition, unsigned repetition, int depth) {
    check(next_ < schema_.size(), "the schema is incomplete");
    check(depth < kMaxNesting, "columns are nested more than {} deep", kMaxNesting);
    const SchemaElement& element = schema_[next_++];
    Node node{.name = element.name,
              .optional = element.repetition == Repetition::optional,
              .repeated = element.repetition == Repetition::repeated,
              .definition = definition + (element.repetition != Repetition::required),
              .repetition = repetition + (element.repetition == Repetition::repeated),
              .first_leaf = leaves_.size()};
    const std::string path = above.empty() ? element.name : above + "." + element.name;
    if (element.children == 0) {
      const std::size_t chunk = chunks_++;
      // The column that was asked for may lack the annotation, as in files of old programs.
      if (element.type != kByteArray || !(element.string || only_)) return std::nullopt;
      leaves_.push_back({path, chunk, node.definition, node.repetition});
      node.leaves = 1;
      return node;
    }
    for (std::uint64_t i = 0; i < element.children; ++i)
      if (auto child = read(path, node.definition, node.repetition, depth + 1))
        node.children.push_back(std::move(*child));
    if (node.children.empty()) return std::nullopt;
    node.leaves = leaves_.size() - node.first_leaf;
    if (element.list && element.children == 1 && node.children[0].repeated) {
      node.transparent = true;
      // The repeated group of a list of three levels. Lists of two levels have the element itself.
      Node& inner = node.children[0];
      const bool element_itself = inner.name == "array" || inner.name == element.name + "_tuple";
      inner.transparent = inner.children.size() == 1 && !element_itself && children_of(inner, element) == 1;
    }
    return node;
  }

  // The children of the repeated group in the file, of which `inner` may have fewer.
  std::uint64_t children_of(const Node& inner, const SchemaElement& list) const {
    const auto at = static_cast<std::size_t>(&list - schema_.data()) + 1;
    return schema_[at].name == inner.name ? schema_[at].children : 0;
  }

  const std::vector<SchemaElement>& schema_;
  std::vector<Node> nodes_;
  std::vector<Leaf> leaves_;
  std::vector<std::string> columns_;
  std::size_t next_ = 0, chunks_ = 0;
  bool only_ = false, found_ = false;
};

// Writes a row as JSON from the levels of its values ("Dremel" record assembly).
class RowWriter {
 public:
  RowWriter(const std::vector<RowValues>& values, std::string& out) : values_(values), out_(out) {}

  struct Range {
    std::size_t begin = 0, end = 0;
  };
  using Ranges = std::vector<Range>;  // one per leaf of a node

  void write(const Node& node, const Ranges& ranges) {
    if (node.repeated)
      write_array(node, ranges);
    else if (node.optional && first(node, ranges).definition < node.definition)
      out_ += "null";
    else
      write_content(node, ranges);
    check(out_.size() <= kMaxRowBytes, "a row has more than {} bytes", kMaxRowBytes);
  }

  void write_members(const std::vector<Node>& nodes, std::size_t first_leaf, const Ranges& ranges) {
    out_ += '{';
    for (const Node& node : nodes) {
      if (&node != nodes.data()) out_ += ',';
      append_json_string(out_, node.name);
      out_ += ':';
      write(node, part(node, first_leaf, ranges));
    }
    out_ += '}';
  }

 private:
  static Ranges part(const Node& node, std::size_t first_leaf, const Ranges& ranges) {
    const auto begin = ranges.begin() + static_cast<std::ptrdiff_t>(node.first_leaf - first_leaf);
    return {begin, begin + static_cast<std::ptrdiff_t>(node.leaves)};
  }

  const RowValues::Value& first(const Node& node, const Ranges& ranges) const {
    check(ranges[0].begin < ranges[0].end, "a list has fewer values in one column than in another");
    return values_[node.first_leaf].values[ranges[0].begin];
  }

  void write_array(const Node& node, const Ranges& ranges) {
    out_ += '[';
    if (first(node, ranges).definition >= node.definition) {
      Ranges rest = ranges, element(ranges.size());
      for (bool more = true; more;) {
        for (std::size_t i = 0; i < rest.size(); ++i) {
          const auto& values = values_[node.first_leaf + i].values;
          check(rest[i].begin < rest[i].end, "a list has fewer values in one column than in another");
          std::size_t end = rest[i].begin + 1;
          while (end < rest[i].end && values[end].repetition > node.repetition) ++end;
          element[i] = {rest[i].begin, end};
          rest[i].begin = end;
        }
        write_content(node, element);
        more = rest[0].begin < rest[0].end;
        if (more) out_ += ',';
      }
    }
    out_ += ']';
  }

  void write_content(const Node& node, const Ranges& ranges) {
    if (node.children.empty()) {
      const RowValues& row = values_[node.first_leaf];
      const RowValues::Value& value = first(node, ranges);
      append_json_string(out_, std::string_view(row.text).substr(value.begin, value.size));
    } else if (node.transparent) {
      write(node.children[0], ranges);
    } else {
      write_members(node.children, node.first_leaf, ranges);
    }
  }

  const std::vector<RowValues>& values_;
  std::string& out_;
};

}  // namespace

class ParquetReader::File {
 public:
  File(const fs::path& path, std::string_view only) : file_(path) {
    try {
      read_footer(only);
    } catch (const Error& error) {
      fail(Hint{error.hint()}, "{}: {}", path.string(), error.what());
    }
  }

  std::optional<std::string> next() {
    while (row_in_group_ == rows_in_group_) {
      if (group_ > 0) check_group_ended();
      if (group_ == footer_.groups.size()) return std::nullopt;
      open_group();
    }
    for (std::size_t i = 0; i < leaves_.size(); ++i) in_column(i, [&] { values_[i].read(*columns_[i]); });
    ++row_in_group_;
    ++row_;
    std::string out;
    RowWriter::Ranges ranges;
    for (const RowValues& values : values_) ranges.push_back({0, values.values.size()});
    try {
      RowWriter(values_, out).write_members(nodes_, 0, ranges);
    } catch (const Error& error) {
      fail("{}: row group {}, row {}: {}", file_.path().string(), group_, row_, error.what());
    }
    return out;
  }

  std::uint64_t row() const { return row_; }
  std::uint64_t rows() const { return rows_; }
  std::uint64_t stored_bytes_read() const {
    const double share = rows_ > 0 ? static_cast<double>(row_) / static_cast<double>(rows_) : 1;
    return static_cast<std::uint64_t>(share * static_cast<double>(file_.size()));
  }

 private:
  void read_footer(std::string_view only) {
    constexpr std::uint64_t kEndBytes = 8;  // the size of the footer, PAR1
    check(file_.size() >= kMagic.size() + kEndBytes, "expected a Parquet file, found {} bytes", file_.size());
    std::string end(kEndBytes, '\0');
    file_.read_at(file_.size() - kEndBytes, std::as_writable_bytes(std::span(end)));
    const std::string_view magic = std::string_view(end).substr(4);
    check(magic != kEncryptedMagic, "the file is encrypted, which is not supported");
    const std::string ending = file_.path().extension().string();
    check(magic == kMagic, Hint{ending == ".gz" || ending == ".zst" ? "unpack it first" : ""},
          "expected \"{}\" at the end of a Parquet file: it is damaged or incomplete", kMagic);
    const std::uint64_t size = PageBytes(end).u32(), most = file_.size() - kMagic.size() - kEndBytes;
    check(size <= most && size <= kMaxFooterBytes, "expected a footer of at most {} bytes, found {}",
          std::min(most, kMaxFooterBytes), size);
    std::string text(size, '\0');
    file_.read_at(file_.size() - kEndBytes - size, std::as_writable_bytes(std::span(text)));
    try {
      footer_ = footer_of(text);
    } catch (const Error& error) {
      fail("the footer is damaged: {}", error.what());
    }
    SchemaTree tree(footer_.schema, only);
    leaves_ = tree.leaves();
    check(!leaves_.empty(), Hint{"pass a file with texts or chats"},
          "expected a column of strings, found the columns {}", joined(tree.columns(), ", "));
    for (std::size_t i = 0; i < footer_.groups.size(); ++i) {
      check(footer_.groups[i].chunks.size() == tree.chunks(), "row group {}: expected {} columns, found {}",
            i + 1, tree.chunks(), footer_.groups[i].chunks.size());
      check(footer_.groups[i].rows <= UINT64_MAX - rows_, "row group {}: too many rows", i + 1);
      rows_ += footer_.groups[i].rows;
    }
    nodes_ = std::move(tree).nodes();
    values_.resize(leaves_.size());
    columns_.resize(leaves_.size());
  }

  template <class Act>
  void in_column(std::size_t leaf, const Act& act) {
    try {
      act();
    } catch (const Error& error) {
      fail(Hint{error.hint()}, "{}: row group {}, column \"{}\": {}", file_.path().string(), group_,
           leaves_[leaf].path, error.what());
    }
  }

  void open_group() {
    const RowGroup& group = footer_.groups[group_++];
    rows_in_group_ = group.rows;
    row_in_group_ = 0;
    for (std::size_t i = 0; i < leaves_.size(); ++i)
      in_column(i, [&] {
        columns_[i] = std::make_unique<ColumnValues>(file_, group.chunks[leaves_[i].chunk], leaves_[i]);
      });
  }

  void check_group_ended() {
    for (std::size_t i = 0; i < leaves_.size(); ++i)
      in_column(
          i, [&] { check(columns_[i]->ended(), "found values after the last of {} rows", rows_in_group_); });
  }

  InputFile file_;
  Footer footer_;
  std::vector<Node> nodes_;
  std::vector<Leaf> leaves_;
  std::vector<RowValues> values_;  // of the current row, per leaf
  std::vector<std::unique_ptr<ColumnValues>> columns_;
  std::size_t group_ = 0;  // number of row groups opened
  std::uint64_t rows_ = 0, row_ = 0, rows_in_group_ = 0, row_in_group_ = 0;
};

ParquetReader::ParquetReader(const fs::path& file, std::string_view only)
    : file_(std::make_unique<File>(file, only)) {}
ParquetReader::~ParquetReader() = default;

std::optional<std::string> ParquetReader::next() {
  return file_->next();
}
std::uint64_t ParquetReader::row() const {
  return file_->row();
}
std::uint64_t ParquetReader::rows() const {
  return file_->rows();
}
std::uint64_t ParquetReader::stored_bytes_read() const {
  return file_->stored_bytes_read();
}

bool is_parquet(const fs::path& file) {
  std::array<char, 4> start{};
  const std::size_t count = InputFile(file).read_some_at(0, std::as_writable_bytes(std::span(start)));
  return std::string_view(start.data(), count) == kMagic;
}

}  // namespace thimble
