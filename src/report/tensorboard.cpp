#include "report/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstring>

namespace thimble {

namespace {

static_assert(std::endian::native == std::endian::little, "event files are little-endian");

constexpr int kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;  // protobuf's wire types

template <class T>
std::string raw(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

std::string field(int number, int type) {
  return varint(static_cast<std::uint64_t>(number << 3 | type));
}

std::string bytes_field(int number, std::string_view bytes) {
  return field(number, kBytes) + varint(bytes.size()) + std::string(bytes);
}

std::string stamp(double wall_time, std::int64_t step) {
  std::string event = field(1, kFixed64) + raw(wall_time);
  if (step != 0) event += field(2, kVarint) + varint(static_cast<std::uint64_t>(step));
  return event;
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

}  // namespace

std::string event_record(std::string_view event) {
  const std::string length = raw(static_cast<std::uint64_t>(event.size()));
  return length + raw(masked_crc32c(length)) + std::string(event) + raw(masked_crc32c(event));
}

std::string file_version_event(double wall_time) {
  return stamp(wall_time, 0) + bytes_field(3, "brain.Event:2");
}

std::string session_start_event(double wall_time, std::int64_t step) {
  return stamp(wall_time, step) + bytes_field(7, field(1, kVarint) + varint(1));
}

std::string scalars_event(double wall_time, std::int64_t step,
                          const std::vector<std::pair<std::string_view, double>>& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars)
    summary += bytes_field(1, bytes_field(1, tag) + field(2, kFixed32) + raw(static_cast<float>(value)));
  return stamp(wall_time, step) + bytes_field(5, summary);
}

TensorBoardWriter::TensorBoardWriter(FileOps& ops, std::filesystem::path run, const OptimizerConfig& config,
                                     std::function<double()> now)
    : ops_(ops), run_(std::move(run)), matrix_rate_(config.rate(ParamGroup::matrix)), now_(std::move(now)) {}

TensorBoardWriter::~TensorBoardWriter() {
  if (file_) ops_.close(*file_);
}

void TensorBoardWriter::step(const StepReport& report) {
  const double seconds = report.seconds;
  add(report.step,
      {{"loss", report.result.loss},
       {"lr", matrix_rate_ * report.multiplier},
       {"grad_norm", report.result.grad_norm},
       {"tokens_per_second", seconds > 0 ? static_cast<double>(report.result.tokens) / seconds : 0}});
}

void TensorBoardWriter::validation(const ValidationReport& report) {
  std::vector<std::pair<std::string_view, double>> scalars = {{"val_loss", report.score.loss()}};
  if (report.score.bytes > 0) scalars.emplace_back("val_bpb", report.score.bits_per_byte());
  add(report.step, scalars);
}

void TensorBoardWriter::add(std::int64_t step,
                            const std::vector<std::pair<std::string_view, double>>& scalars) {
  if (!file_) open(step);
  write(event_record(scalars_event(now_(), step, scalars)));
}

void TensorBoardWriter::open(std::int64_t step) {
  const double now = now_();
  // File names must sort by time, because TensorBoard reads the files in name order.
  file_ = ops_.open_for_writing(
      run_ / fmt::format("events.out.tfevents.{:010.0f}.{}.{}", now, host_name(), getpid()));
  ops_.truncate(*file_, 0);
  write(event_record(file_version_event(now)));
  if (step > 0) write(event_record(session_start_event(now, step)));
}

void TensorBoardWriter::write(std::string_view record) {
  auto rest = std::as_bytes(std::span(record));
  while (!rest.empty()) rest = rest.subspan(ops_.write(*file_, rest));
}

namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // 0x1EDC6F41, bits reversed
constexpr std::uint32_t kMaskDelta = 0xA282EAD8;

constexpr std::array<std::uint32_t, 256> kTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ kPolynomial : crc >> 1;
    table[i] = crc;
  }
  return table;
}();

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~std::uint32_t{0};
  for (const char c : bytes) crc = kTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF] ^ crc >> 8;
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + kMaskDelta;
}

}  // namespace thimble
