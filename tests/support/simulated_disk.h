// An in-memory disk that can be made to fail.
//
//   SimulatedDisk disk;
//   disk.put_folder("/run");
//   disk.put("/run/model", "old");
//   disk.lose_power_after(5);
//   try { write_file(disk, "/run/model", "new", Existing::replace); } catch (const PowerLoss&) {}
//   for (SimulatedDisk& left : disk.after_power_loss()) { ... left.files() ... }
//
// It guarantees only what POSIX guarantees. Data that was synced survives a power loss. Otherwise:
//  - bytes written to a file since its last sync may be missing, partly present, or
//    replaced by zeros or garbage;
//  - each change of a folder (create, rename, link, remove, make) since its last sync may or may
//    not have happened, as long as the result is consistent: a rename needs the name that it moves.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_ops.h"

namespace thimble {

struct PowerLoss {};  // not an Error, because no code runs after a power loss

class SimulatedDisk final : public FileOps {
 public:
  using Files = std::map<std::string, std::string>;  // path -> content

  SimulatedDisk() { put_folder("/"); }

  // A copy of a folder of the real disk.
  static SimulatedDisk copy_of(const Path& folder);
  // Replaces the contents of the folder on the real disk by those of this disk.
  void write_out(const Path& folder) const;

  // Set up the initial state.
  void put_folder(const Path& path);
  void put(const Path& path, std::string_view content);
  void put_link(const Path& existing, const Path& name);

  // Operations are counted from 1.
  void fail_at(int operation, int code);
  void fail_from(int operation, int code);
  void refuse_links(int code);           // like a file system without hard links
  void limit_writes(std::size_t bytes);  // maximum bytes per write
  void lose_power_after(int operations);
  void before(int operation, std::function<void(SimulatedDisk&)> act);  // calls act before it

  const std::vector<std::string>& log() const { return log_; }
  Files files() const;
  std::optional<std::string> content(const Path& path) const;
  std::size_t open_handles() const { return handles_.size(); }

  // All possible states after a power loss now. Exhaustive, so only for files of a few bytes.
  std::vector<SimulatedDisk> after_power_loss() const;
  // At most `most` of them, the extremes first, for files of any size.
  std::vector<SimulatedDisk> some_after_power_loss(std::size_t most) const;

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
  struct Inode {
    bool folder = false;
    std::string content;  // as seen by programs
    std::string on_disk;  // as of the last sync
    bool unsynced = false;
    int locked_by = -1;
  };
  using Names = std::map<std::string, int>;  // path -> inode

  struct FolderChange {
    std::string folder;
    std::string drops, adds;  // paths, or empty
    int inode;
    bool swaps = false;  // exchanges the two names

    bool apply(Names& names) const;  // false: impossible
  };

  struct Open {
    int inode;
    std::size_t position;
  };

  void begin(std::string_view action, const Path& path);
  bool begin_quietly(std::string_view action, const Path& path) noexcept;
  bool log_operation(std::string_view action, const Path& path);
  void change_folder(const FolderChange& change);
  int find(const Path& path) const;  // inode, or -1
  bool in_folder(const Path& path) const;
  int inode_of(std::string_view action, const Path& path) const;
  int new_inode(bool folder);
  FileHandle open(const Path& path, int inode);
  std::size_t count_names(int inode) const;
  std::vector<Names> possible_names() const;
  std::set<Names> extreme_names() const;
  bool applied(Names& names, const std::vector<bool>& happened) const;
  static void drop_unreachable(Names& names);
  static std::set<std::string> possible_contents(const Inode& inode);
  SimulatedDisk rebooted(const Names& names, const std::map<int, std::string>& contents) const;

  std::map<int, Inode> inodes_;
  Names names_, names_on_disk_;
  std::vector<FolderChange> unsynced_changes_;
  std::map<int, Open> handles_;
  int next_id_ = 1;

  std::vector<std::string> log_;
  int fail_first_ = 0, fail_last_ = -1, fail_code_ = 0, link_code_ = 0;
  std::size_t write_limit_ = 0;  // 0: no limit
  int power_operations_ = -1;    // -1: no power loss
  bool power_off_ = false;
  std::map<int, std::function<void(SimulatedDisk&)>> before_;
};

}  // namespace thimble
