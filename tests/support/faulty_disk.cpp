#include "support/faulty_disk.h"

#include <algorithm>
#include <cerrno>
#include <stdexcept>

namespace thimble {

void FaultyDisk::fail_at(int operation, int code) {
  fault_ = Fault::once;
  fault_at_ = operation;
  code_ = code;
}

void FaultyDisk::die_at(int operation) {
  fault_ = Fault::dead;
  fault_at_ = operation;
  code_ = EIO;
}

void FaultyDisk::fill_at(int operation) {
  fault_ = Fault::full;
  fault_at_ = operation;
  code_ = ENOSPC;
}

void FaultyDisk::begin(std::string_view action, const Path& path, bool needs_room) {
  if (power_operations_ >= 0 && operations() >= power_operations_) power_off_ = true;
  if (power_off_) throw PowerLoss();
  log_.push_back(fmt::format("{} {}", action, path.string()));
  const bool fails = (fault_ == Fault::once && operations() == fault_at_) ||
                     (fault_ == Fault::dead && broken_since()) ||
                     (fault_ == Fault::full && broken_since() && needs_room);
  if (fails) throw FileError(action, path, code_);
}

void FaultyDisk::mirror(const std::function<void()>& act) {
  try {
    act();
  } catch (const FileError& error) {
    throw std::logic_error(fmt::format("the folder was changed without FileOps: {}", error.what()));
  }
}

void FaultyDisk::note_versions() {
  if (!watching_) return;
  const SimulatedDisk::Files files = known_.files();
  for (const auto& [path, content] : files) versions_[path].insert(content);
  for (auto& [path, contents] : versions_)
    if (!files.contains(path)) contents.insert(std::nullopt);
}

FileHandle FaultyDisk::opened(const FileHandle& real, const FileHandle& known) {
  handles_[real.id] = known;
  return real;
}

PathKind FaultyDisk::kind(const Path& path) {
  begin("access", path);
  return real_.kind(path);
}

FileHandle FaultyDisk::open_for_writing(const Path& path) {
  begin("open", path, true);
  const FileHandle real = real_.open_for_writing(path);
  FileHandle known;
  mirror([&] { known = known_.open_for_writing(path); });
  return opened(real, known);
}

FileHandle FaultyDisk::open_for_reading(const Path& path) {
  begin("read", path);
  const FileHandle real = real_.open_for_reading(path);
  FileHandle known;
  mirror([&] { known = known_.open_for_reading(path); });
  return opened(real, known);
}

bool FaultyDisk::try_lock(const FileHandle& file) noexcept {
  return real_.try_lock(file);
}

NameState FaultyDisk::name_state(const FileHandle& file) {
  begin("access", file.path);
  return real_.name_state(file);
}

void FaultyDisk::truncate(const FileHandle& file, std::uint64_t bytes) {
  begin("truncate", file.path);
  real_.truncate(file, bytes);
  mirror([&] { known_.truncate(handles_.at(file.id), bytes); });
}

std::size_t FaultyDisk::write(const FileHandle& file, std::span<const std::byte> bytes) {
  const bool fills = fault_ == Fault::full && operations() + 1 == fault_at_ && bytes.size() > 1;
  begin("write", file.path, !fills);
  if (fills) bytes = bytes.first(bytes.size() / 2);
  if (write_limit_ > 0) bytes = bytes.first(std::min(bytes.size(), write_limit_));
  const std::size_t written = real_.write(file, bytes);
  mirror([&] { known_.write(handles_.at(file.id), bytes.first(written)); });
  return written;
}

std::size_t FaultyDisk::read(const FileHandle& file, std::span<std::byte> bytes) {
  begin("read", file.path);
  return real_.read(file, bytes);
}

// Only the simulated disk is synced: the real one does not lose power.
void FaultyDisk::sync(const FileHandle& file) {
  begin("sync", file.path);
  mirror([&] { known_.sync(handles_.at(file.id)); });
}

void FaultyDisk::close(const FileHandle& file) noexcept {
  real_.close(file);
  known_.close(handles_.at(file.id));
  handles_.erase(file.id);
}

void FaultyDisk::rename(const Path& from, const Path& to) {
  begin("rename", to);
  real_.rename(from, to);
  mirror([&] { known_.rename(from, to); });
  note_versions();
}

void FaultyDisk::exchange(const Path& a, const Path& b) {
  begin("exchange", b);
  if (!exchanges_) throw FileError("exchange", b, ENOTSUP);
  real_.exchange(a, b);
  mirror([&] { known_.exchange(a, b); });
  note_versions();
}

void FaultyDisk::link(const Path& existing, const Path& name) {
  begin("link", name, true);
  real_.link(existing, name);
  mirror([&] { known_.link(existing, name); });
  note_versions();
}

void FaultyDisk::remove(const Path& path) {
  begin("remove", path);
  real_.remove(path);
  mirror([&] { known_.remove(path); });
  note_versions();
}

void FaultyDisk::sync_folder(const Path& path) {
  begin("sync_folder", path);
  mirror([&] { known_.sync_folder(path); });
}

void FaultyDisk::make_folder(const Path& path) {
  begin("make_folder", path, true);
  real_.make_folder(path);
  mirror([&] { known_.make_folder(path); });
}

}  // namespace thimble
