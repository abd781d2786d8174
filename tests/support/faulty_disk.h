// A real folder whose disk can be made to fail, for testing writers that read back what they wrote.
//
//   FaultyDisk disk(folder);
//   disk.fail_at(5, EIO);
//   try { export_model(disk, ...); } catch (const FileError&) {}
//
// A simulated disk mirrors every operation and computes the possible states after a power loss. A
// change of the folder that bypasses FileOps throws std::logic_error.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "support/simulated_disk.h"

namespace thimble {

class FaultyDisk final : public FileOps {
 public:
  using Versions = std::map<std::string, std::set<std::optional<std::string>>>;  // nullopt: absent

  explicit FaultyDisk(const Path& folder) : known_(SimulatedDisk::copy_of(folder)) {}

  // Operations are counted from 1.
  void fail_at(int operation, int code);
  void die_at(int operation);   // this and all later operations fail
  void fill_at(int operation);  // writes half, then no space; removing still works
  void limit_writes(std::size_t bytes) { write_limit_ = bytes; }
  void refuse_exchange() { exchanges_ = false; }  // like file systems that cannot exchange
  void lose_power_after(int operations) { power_operations_ = operations; }
  // Records every content that each name has had.
  void watch() { watching_ = true; }

  int operations() const { return static_cast<int>(log_.size()); }
  const std::vector<std::string>& log() const { return log_; }
  std::size_t open_handles() const { return handles_.size(); }
  const Versions& versions() const { return versions_; }
  const SimulatedDisk& known() const { return known_; }

  PathKind kind(const Path& path) override;
  FileHandle open_for_writing(const Path& path) override;
  FileHandle open_for_reading(const Path& path) override;
  bool try_lock(const FileHandle& file) noexcept override;
  NameState name_state(const FileHandle& file) override;
  void truncate(const FileHandle& file, std::uint64_t bytes) override;
  std::size_t write(const FileHandle& file, std::span<const std::byte> bytes) override;
  std::size_t read(const FileHandle& file, std::span<std::byte> bytes) override;
  void sync(const FileHandle& file) override;
  void close(const FileHandle& file) noexcept override;
  void rename(const Path& from, const Path& to) override;
  void exchange(const Path& a, const Path& b) override;
  void link(const Path& existing, const Path& name) override;
  void remove(const Path& path) override;
  void sync_folder(const Path& path) override;
  void make_folder(const Path& path) override;

 private:
  enum class Fault { none, once, dead, full };

  void begin(std::string_view action, const Path& path, bool needs_room = false);
  bool broken_since() const { return operations() >= fault_at_; }
  FileHandle opened(const FileHandle& real, const FileHandle& known);
  void mirror(const std::function<void()>& act);  // repeats it on the simulated disk
  void note_versions();

  PosixFileOps real_;
  SimulatedDisk known_;
  std::map<int, FileHandle> handles_;  // real -> simulated
  std::vector<std::string> log_;
  Versions versions_;
  Fault fault_ = Fault::none;
  int fault_at_ = 0, code_ = 0, power_operations_ = -1;
  std::size_t write_limit_ = 0;  // 0: no limit
  bool power_off_ = false, exchanges_ = true, watching_ = false;
};

}  // namespace thimble
