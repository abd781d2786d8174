#include "data/parquet_footer.h"

#include <algorithm>

#include "base/error.h"

namespace thimble::parquet {

namespace {

constexpr std::size_t kMaxSchema = 10'000;

// Thrift's compact protocol: a struct is a list of numbered fields, of which unknown ones are
// skipped.
enum class Thrift { stop, yes, no, i8, i16, i32, i64, real, binary, list, set, map, object };

class ThriftStruct {
 public:
  explicit ThriftStruct(PageBytes& bytes, int depth = 0) : bytes_(bytes), depth_(depth) {
    check(depth <= kMaxNesting, "structures are nested more than {} deep", kMaxNesting);
  }

  // Moves to the next field; false at the end. An unread field is skipped.
  bool next() {
    if (!read_) skip(type_);
    const std::uint8_t head = bytes_.byte();
    type_ = type_of(head & 0xF);
    read_ = type_ == Thrift::stop;
    if (read_) return false;
    const int step = head >> 4;
    id_ = step > 0 ? id_ + step : static_cast<int>(std::clamp<std::int64_t>(bytes_.zigzag(), -1, 1 << 15));
    return true;
  }
  int id() const { return id_; }

  std::int64_t integer() {
    expect(type_ == Thrift::i16 || type_ == Thrift::i32 || type_ == Thrift::i64, "an integer");
    return bytes_.zigzag();
  }
  std::uint64_t size() {
    const std::int64_t value = integer();
    check(value >= 0, "field {}: expected a size, found {}", id_, value);
    return static_cast<std::uint64_t>(value);
  }
  bool boolean() {
    expect(type_ == Thrift::yes || type_ == Thrift::no, "a truth value");
    return type_ == Thrift::yes;
  }
  std::string_view binary() {
    expect(type_ == Thrift::binary, "a string");
    return bytes_.take(bytes_.varint());
  }
  ThriftStruct object() {
    expect(type_ == Thrift::object, "a structure");
    return ThriftStruct(bytes_, depth_ + 1);
  }
  // Calls use(ThriftStruct&) for each element of a list of structures.
  template <class Use>
  void objects(const Use& use) {
    expect(type_ == Thrift::list, "a list");
    const auto [type, count] = list_head();
    check(type == Thrift::object || count == 0, "field {}: expected a list of structures", id_);
    for (std::uint64_t i = 0; i < count; ++i) {
      ThriftStruct element(bytes_, depth_ + 1);
      use(element);
    }
  }

 private:
  static Thrift type_of(unsigned number) {
    check(number <= static_cast<unsigned>(Thrift::object), "found a field of the unknown type {}", number);
    return static_cast<Thrift>(number);
  }
  void expect(bool holds, std::string_view what) {
    check(holds, "field {}: expected {}", id_, what);
    read_ = true;
  }
  std::pair<Thrift, std::uint64_t> list_head() {
    const std::uint8_t head = bytes_.byte();
    const std::uint64_t count = head >> 4 == 15 ? bytes_.varint() : head >> 4;
    check(count <= bytes_.rest().size(), "found a list of {} elements in {} bytes", count,
          bytes_.rest().size());
    return {type_of(head & 0xF), count};
  }
  void skip(Thrift type, bool element = false) {
    switch (type) {
      case Thrift::stop:
        return;
      case Thrift::yes:
      case Thrift::no:
        if (element) bytes_.byte();
        return;
      case Thrift::i8:
        bytes_.byte();
        return;
      case Thrift::i16:
      case Thrift::i32:
      case Thrift::i64:
        bytes_.varint();
        return;
      case Thrift::real:
        bytes_.take(8);
        return;
      case Thrift::binary:
        bytes_.take(bytes_.varint());
        return;
      case Thrift::list:
      case Thrift::set: {
        const auto [of, count] = list_head();
        ThriftStruct inner(bytes_, depth_ + 1);
        for (std::uint64_t i = 0; i < count; ++i) inner.skip(of, true);
        return;
      }
      case Thrift::map: {
        const std::uint64_t count = bytes_.varint();
        if (count == 0) return;
        check(count <= bytes_.rest().size(), "found a map of {} elements in {} bytes", count,
              bytes_.rest().size());
        const std::uint8_t types = bytes_.byte();
        ThriftStruct inner(bytes_, depth_ + 1);
        for (std::uint64_t i = 0; i < count; ++i) {
          inner.skip(type_of(types >> 4), true);
          inner.skip(type_of(types & 0xF), true);
        }
        return;
      }
      case Thrift::object: {
        ThriftStruct inner(bytes_, depth_ + 1);
        while (inner.next()) {
        }
        return;
      }
    }
  }

  PageBytes& bytes_;
  int depth_ = 0, id_ = 0;
  Thrift type_ = Thrift::stop;
  bool read_ = true;
};

SchemaElement schema_element(ThriftStruct& fields) {
  constexpr std::int64_t kUtf8 = 0, kList = 3, kEnum = 4, kJson = 19;  // converted types
  constexpr int kLogicalString = 1, kLogicalList = 3, kLogicalEnum = 4, kLogicalJson = 12;
  SchemaElement element;
  while (fields.next()) switch (fields.id()) {
      case 1:
        element.type = fields.integer();
        break;
      case 3: {
        const std::int64_t repetition = fields.integer();
        check(repetition >= 0 && repetition <= 2, "found a column of the unknown repetition {}", repetition);
        element.repetition = static_cast<Repetition>(repetition);
        break;
      }
      case 4:
        element.name = fields.binary();
        break;
      case 5:
        element.children = fields.size();
        break;
      case 6: {
        const std::int64_t type = fields.integer();
        element.string |= type == kUtf8 || type == kEnum || type == kJson;
        element.list |= type == kList;
        break;
      }
      case 10:
        for (ThriftStruct type = fields.object(); type.next();) {
          const int id = type.id();
          element.string |= id == kLogicalString || id == kLogicalEnum || id == kLogicalJson;
          element.list |= id == kLogicalList;
        }
        break;
      default:
        break;
    }
  return element;
}

Chunk chunk_of(ThriftStruct& fields) {
  Chunk chunk;
  while (fields.next()) switch (fields.id()) {
      case 1:
        chunk.elsewhere = !fields.binary().empty();
        break;
      case 3:
        for (ThriftStruct data = fields.object(); data.next();) switch (data.id()) {
            case 1:
              chunk.type = data.integer();
              break;
            case 4:
              chunk.codec = static_cast<Codec>(std::min<std::uint64_t>(data.size(), 1000));
              break;
            case 5:
              chunk.values = data.size();
              break;
            case 7:
              chunk.bytes = data.size();
              break;
            case 9:
              chunk.data_page = data.size();
              break;
            case 11:
              chunk.dictionary_page = data.size();
              break;
            default:
              break;
          }
        break;
      case 8:
        chunk.encrypted = true;
        break;
      default:
        break;
    }
  const bool has_dictionary = chunk.dictionary_page > 0 && chunk.dictionary_page < chunk.data_page;
  chunk.begin = has_dictionary ? chunk.dictionary_page : chunk.data_page;
  return chunk;
}

}  // namespace

Footer footer_of(std::string_view text) {
  PageBytes bytes(text);
  Footer footer;
  for (ThriftStruct file(bytes); file.next();) switch (file.id()) {
      case 2:
        file.objects([&](ThriftStruct& element) {
          check(footer.schema.size() < kMaxSchema, "the schema has more than {} elements", kMaxSchema);
          footer.schema.push_back(schema_element(element));
        });
        break;
      case 4:
        file.objects([&](ThriftStruct& fields) {
          RowGroup group;
          while (fields.next()) {
            if (fields.id() == 1)
              fields.objects([&](ThriftStruct& chunk) { group.chunks.push_back(chunk_of(chunk)); });
            else if (fields.id() == 3)
              group.rows = fields.size();
          }
          footer.groups.push_back(std::move(group));
        });
        break;
      default:
        break;
    }
  return footer;
}

PageHeader page_header(PageBytes& bytes) {
  PageHeader page;
  for (ThriftStruct fields(bytes); fields.next();) switch (fields.id()) {
      case 1:
        page.type = fields.integer();
        break;
      case 2:
        page.size = fields.size();
        break;
      case 3:
        page.stored = fields.size();
        break;
      case 4:
        page.crc = static_cast<std::uint32_t>(fields.integer());
        break;
      case 5:
      case 7:
      case 8: {
        const bool v2 = fields.id() == 8;
        for (ThriftStruct data = fields.object(); data.next();) switch (data.id()) {
            case 1:
              page.values = data.size();
              break;
            case 2:
              if (!v2) page.encoding = data.integer();
              break;
            case 3:
              if (!v2 && page.type == kDataPage) page.definition_encoding = data.integer();
              break;
            case 4:
              if (v2)
                page.encoding = data.integer();
              else if (page.type == kDataPage)
                page.repetition_encoding = data.integer();
              break;
            case 5:
              if (v2) page.definition_bytes = data.size();
              break;
            case 6:
              if (v2) page.repetition_bytes = data.size();
              break;
            case 7:
              if (v2) page.compressed = data.boolean();
              break;
            default:
              break;
          }
        break;
      }
      default:
        break;
    }
  return page;
}

}  // namespace thimble::parquet
