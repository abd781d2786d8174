// Reading token files, and what a model computes for them.
#include "formats/trace.h"

#include "base/error.h"
#include "formats/safetensors_bytes.h"
#include "model/random_model.h"

namespace thimble {
namespace {

using Tokens32 = std::vector<std::int32_t>;

struct TokenFile {
  SafetensorsWriter writer;
  std::vector<std::vector<std::int32_t>> kept;

  TokenFile& add(const char* name, std::vector<std::int64_t> dims, Tokens32 values) {
    kept.reserve(8);
    kept.push_back(std::move(values));
    writer.add(name, DType::i32, std::move(dims), bytes_of(kept.back()));
    return *this;
  }
  TraceTokens read() const { return read_trace_tokens(view_of(bytes_ = written(writer, WithDigest::no))); }
  std::string message() const {
    try {
      read();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  }
  mutable std::string bytes_;
};

TEST(TraceTokens, DefaultTargetsAreTheShiftedInputsOfEachRow) {
  const TraceTokens tokens = TokenFile().add("input", {2, 3}, {1, 2, 3, 4, 5, 6}).read();
  EXPECT_EQ(tokens.target, (Tokens32{2, 3, -1, 5, 6, -1}));
  EXPECT_TRUE(tokens.doc_start.empty());
  EXPECT_EQ(tokens.row_length(), 3);
}

TEST(TraceTokens, AcceptsOneRowOf64BitsAndByteFlags) {
  SafetensorsWriter writer;
  const std::vector<std::int64_t> input = {7, 8, 9}, target = {8, -100, 1};
  const std::vector<std::uint8_t> starts = {0, 1, 0};
  writer.add("input", DType::i64, {3}, bytes_of(input));
  writer.add("target", DType::i64, {3}, bytes_of(target));
  writer.add("doc_start", DType::u8, {3}, bytes_of(starts));
  const std::string bytes = written(writer, WithDigest::no);
  const TraceTokens tokens = read_trace_tokens(view_of(bytes));
  EXPECT_EQ(tokens.input, (Tokens32{7, 8, 9}));
  EXPECT_EQ(tokens.target, (Tokens32{8, -1, 1}));
  EXPECT_EQ(tokens.doc_start, starts);
}

TEST(TraceTokens, WrongShapesAreErrors) {
  EXPECT_EQ(TokenFile().add("input", {2, 2}, {1, 2, 3, 4}).add("target", {4}, {1, 2, 3, 4}).message(),
            "test.safetensors: tensor target is [4], expected the shape of input, [2, 2]");
  EXPECT_EQ(TokenFile().add("input", {0, 2}, {}).message(),
            "test.safetensors: tensor input is [0, 2], expected [rows, tokens] or [tokens]");
  EXPECT_EQ(TokenFile().add("input", {1, 1, 1}, {1}).message(),
            "test.safetensors: tensor input is [1, 1, 1], expected [rows, tokens] or [tokens]");
}

SafetensorsFile traced(Model& model, const TraceTokens& tokens, bool gradients, std::string& bytes) {
  SimulatedDisk disk;
  disk.put_folder("/d");
  write_trace(disk, "/d/trace", model, tokens, {.gradients = gradients});
  bytes = disk.content("/d/trace").value();
  return view_of(bytes);
}

TEST(Trace, ContainsLogitsLossAndAGradientForEveryWeight) {
  const Context context;
  Model model = random_model(small_config("golf-plus"), context);
  const TraceTokens tokens = TokenFile().add("input", {2, 3}, {1, 2, 3, 4, 5, 6}).read();
  std::string bytes;
  const SafetensorsFile file = traced(model, tokens, true, bytes);
  EXPECT_EQ(file.at("logits").dims, (std::vector<std::int64_t>{2, 3, 40}));
  EXPECT_EQ(file.at("loss").dims, std::vector<std::int64_t>{1});
  EXPECT_EQ(file.entries().size(), 2 + model.params().all().size());
  for (const Param& param : model.params().all()) EXPECT_EQ(file.at("grad." + param.name).dims, param.dims);
}

TEST(Trace, RowsOfOneTokenHaveNoLossWithoutTargets) {
  const Context context;
  Model model = random_model(small_config("llama"), context);
  const TraceTokens tokens = TokenFile().add("input", {5, 1}, {1, 2, 3, 4, 5}).read();
  std::string bytes;
  EXPECT_EQ(traced(model, tokens, false, bytes).entries().size(), 1u);
  EXPECT_THROW(traced(model, tokens, true, bytes), Error);
}

TEST(Trace, ChecksTheTokens) {
  const Context context;
  Model model = random_model(small_config("llama"), context);
  std::string bytes;
  const auto throws = [&](const TokenFile& file) {
    EXPECT_THROW(traced(model, file.read(), false, bytes), Error);
  };
  throws(TokenFile().add("input", {1, 2}, {1, 40}));
  throws(TokenFile().add("input", {1, 2}, {1, -1}));
  throws(TokenFile().add("input", {1, 2}, {1, 2}).add("target", {1, 2}, {1, 99}));
  throws(TokenFile().add("input", {25}, Tokens32(25)));  // one more than the context
}

}  // namespace
}  // namespace thimble
