#include "data/split_writer.h"

#include <algorithm>

#include "base/json.h"

namespace thimble {

Json SplitState::to_json() const {
  Json list = Json::array();
  for (const ManifestShard& shard : shards)
    list.push(Json::object().set("file", shard.file).set("tokens", shard.tokens).set("digest", shard.digest));
  return Json::object()
      .set("shards", std::move(list))
      .set("record", record)
      .set("tokens_before", tokens_before)
      .set("documents", counts.documents)
      .set("tokens", counts.tokens)
      .set("bytes", counts.bytes)
      .set("too_long", counts.too_long)
      .set("truncated", counts.truncated);
}

SplitState SplitState::parse(const Json& json) {
  SplitState state;
  for (const Json& shard : json.at("shards").as_array())
    state.shards.push_back(
        {shard.at("file").as_string(), shard.at("tokens").as_uint(), shard.at("digest").as_string()});
  state.record = json.at("record").as_uint();
  state.tokens_before = json.at("tokens_before").as_uint();
  state.counts = {json.at("documents").as_uint(), json.at("tokens").as_uint(), json.at("bytes").as_uint(),
                  json.at("too_long").as_uint(), json.at("truncated").as_uint()};
  return state;
}

SplitWriter::SplitWriter(FileOps& ops, Place place, std::int64_t vocab_size, std::uint64_t shard_tokens,
                         SplitState state)
    : ops_(ops),
      place_(std::move(place)),
      shard_tokens_(shard_tokens),
      shard_(vocab_size),
      restart_(std::move(state)),
      counts_(restart_.counts) {}

bool SplitWriter::add(std::uint64_t record, bool starts_document, const EncodedRecord& encoded) {
  bool finished = false;
  std::uint64_t skip = record == restart_.record ? restart_.tokens_before : 0;
  std::uint64_t used = 0;  // tokens of this record
  for (std::span<const TokenId> part : encoded.parts) {
    const std::uint64_t skipped = std::min<std::uint64_t>(skip, part.size());
    skip -= skipped;
    used += skipped;
    part = part.subspan(skipped);
    while (!part.empty()) {
      const auto count = std::min<std::uint64_t>(part.size(), shard_tokens_ - shard_.tokens());
      shard_.add(part.first(count));
      part = part.subspan(count);
      used += count;
      if (shard_.tokens() < shard_tokens_) continue;
      write_shard();
      finished = true;
      restart_.record = record;
      restart_.tokens_before = used;
      restart_.counts = counts_;
    }
  }
  counts_.documents += starts_document && !encoded.parts.empty();
  counts_.tokens += used;
  counts_.bytes += encoded.bytes;
  counts_.too_long += encoded.too_long;
  counts_.truncated += encoded.truncated;
  return finished;
}

void SplitWriter::write_shard() {
  ManifestShard shard{shard_name(place_.dataset, place_.split, restart_.shards.size()), shard_.tokens(), {}};
  shard.digest = shard_.write(ops_, place_.folder / shard.file, Existing::replace).hex();
  restart_.shards.push_back(std::move(shard));
}

ManifestSplit SplitWriter::finish() {
  if (shard_.tokens() > 0) write_shard();
  return {counts_.documents, counts_.tokens, counts_.bytes, restart_.shards};
}

}  // namespace thimble
