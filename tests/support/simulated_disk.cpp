#include "support/simulated_disk.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <stdexcept>

namespace thimble {

namespace {

std::string normal(const std::filesystem::path& path) {
  return path.lexically_normal().string();
}

std::string parent_of(const std::filesystem::path& path) {
  return normal(folder_of(path));
}

bool is_below(const std::string& path, const std::string& folder) {
  return path.size() > folder.size() && path.starts_with(folder) && path[folder.size()] == '/';
}

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Moves a name and, if it is a folder, everything below it.
void move_tree(std::map<std::string, int>& names, const std::string& from, const std::string& to) {
  std::map<std::string, int> moved;
  std::erase_if(names, [&](const auto& name) {
    if (name.first != from && !is_below(name.first, from)) return false;
    moved[to + name.first.substr(from.size())] = name.second;
    return true;
  });
  for (const auto& [path, id] : moved) names[path] = id;
}

}  // namespace

SimulatedDisk SimulatedDisk::copy_of(const Path& folder) {
  SimulatedDisk disk;
  for (Path above = folder; above.has_relative_path(); above = above.parent_path()) disk.put_folder(above);
  std::map<ino_t, Path> known;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_directory()) {
      disk.put_folder(entry.path());
      continue;
    }
    struct stat status {};
    if (::stat(entry.path().c_str(), &status) != 0) throw FileError("access", entry.path(), errno);
    if (const auto same = known.find(status.st_ino); same != known.end())
      disk.put_link(same->second, entry.path());
    else
      disk.put(entry.path(), bytes_of(entry.path()));
    known.emplace(status.st_ino, entry.path());
  }
  return disk;
}

void SimulatedDisk::write_out(const Path& folder) const {
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    std::filesystem::remove_all(entry.path());
  std::map<int, Path> written;
  for (const auto& [path, id] : names_) {  // folders sort before their contents
    if (!is_below(path, normal(folder))) continue;
    if (inodes_.at(id).folder)
      std::filesystem::create_directory(path);
    else if (const auto same = written.find(id); same != written.end())
      std::filesystem::create_hard_link(same->second, path);
    else
      std::ofstream(path, std::ios::binary) << inodes_.at(id).content;
    written.emplace(id, path);
  }
}

void SimulatedDisk::put_folder(const Path& path) {
  names_[normal(path)] = names_on_disk_[normal(path)] = new_inode(true);
}

void SimulatedDisk::put(const Path& path, std::string_view content) {
  const int id = new_inode(false);
  inodes_[id].content = inodes_[id].on_disk = content;
  names_[normal(path)] = names_on_disk_[normal(path)] = id;
}

void SimulatedDisk::put_link(const Path& existing, const Path& name) {
  names_[normal(name)] = names_on_disk_[normal(name)] = names_.at(normal(existing));
}

void SimulatedDisk::fail_at(int operation, int code) {
  fail_first_ = fail_last_ = operation;
  fail_code_ = code;
}

void SimulatedDisk::fail_from(int operation, int code) {
  fail_at(operation, code);
  fail_last_ = std::numeric_limits<int>::max();
}

void SimulatedDisk::refuse_links(int code) {
  link_code_ = code;
}

void SimulatedDisk::limit_writes(std::size_t bytes) {
  write_limit_ = bytes;
}

void SimulatedDisk::lose_power_after(int operations) {
  power_operations_ = operations;
}

void SimulatedDisk::before(int operation, std::function<void(SimulatedDisk&)> act) {
  before_[operation] = std::move(act);
}

SimulatedDisk::Files SimulatedDisk::files() const {
  Files files;
  for (const auto& [path, id] : names_)
    if (!inodes_.at(id).folder) files[path] = inodes_.at(id).content;
  return files;
}

std::optional<std::string> SimulatedDisk::content(const Path& path) const {
  const int id = find(path);
  return id < 0 ? std::nullopt : std::optional(inodes_.at(id).content);
}

// Returns true if this operation is configured to fail.
bool SimulatedDisk::log_operation(std::string_view action, const Path& path) {
  if (power_operations_ >= 0 && std::cmp_equal(log_.size(), power_operations_)) power_off_ = true;
  if (power_off_) return true;
  if (const auto other = before_.find(static_cast<int>(log_.size()) + 1); other != before_.end()) {
    const auto act = std::move(other->second);
    before_.clear();
    act(*this);
  }
  log_.push_back(fmt::format("{} {}", action, path.string()));
  return std::cmp_greater_equal(log_.size(), fail_first_) && std::cmp_less_equal(log_.size(), fail_last_);
}

void SimulatedDisk::begin(std::string_view action, const Path& path) {
  const bool fails = log_operation(action, path);
  if (power_off_) throw PowerLoss();
  if (fails) throw FileError(action, path, fail_code_);
}

bool SimulatedDisk::begin_quietly(std::string_view action, const Path& path) noexcept {
  log_operation(action, path);
  return !power_off_;
}

int SimulatedDisk::find(const Path& path) const {
  const auto found = names_.find(normal(path));
  return found == names_.end() ? -1 : found->second;
}

bool SimulatedDisk::in_folder(const Path& path) const {
  const int id = find(folder_of(path));
  return id >= 0 && inodes_.at(id).folder;
}

int SimulatedDisk::inode_of(std::string_view action, const Path& path) const {
  const int id = find(path);
  if (id < 0) throw FileError(action, path, ENOENT);
  if (inodes_.at(id).folder) throw FileError(action, path, EISDIR);
  return id;
}

int SimulatedDisk::new_inode(bool folder) {
  inodes_[next_id_].folder = folder;
  return next_id_++;
}

FileHandle SimulatedDisk::open(const Path& path, int inode) {
  handles_[next_id_] = {inode, 0};
  return {next_id_++, path};
}

std::size_t SimulatedDisk::count_names(int inode) const {
  return static_cast<std::size_t>(
      std::count_if(names_.begin(), names_.end(), [&](const auto& name) { return name.second == inode; }));
}

bool SimulatedDisk::FolderChange::apply(Names& names) const {
  if (drops.empty()) return names.emplace(adds, inode).second;
  const auto found = names.find(drops);
  if (found == names.end() || found->second != inode) return false;
  if (adds.empty()) {
    names.erase(found);
  } else if (!swaps) {
    names.erase(adds);
    move_tree(names, drops, adds);
  } else {
    if (!names.contains(adds)) return false;
    const std::string aside = drops + "\n";
    move_tree(names, drops, aside);
    move_tree(names, adds, drops);
    move_tree(names, aside, adds);
  }
  return true;
}

void SimulatedDisk::change_folder(const FolderChange& change) {
  unsynced_changes_.push_back(change);
  if (!unsynced_changes_.back().apply(names_))
    throw std::logic_error("the simulated disk cannot apply a folder change");
}

PathKind SimulatedDisk::kind(const Path& path) {
  begin("access", path);
  const int id = find(path);
  if (id < 0) return PathKind::nothing;
  return inodes_.at(id).folder ? PathKind::folder : PathKind::file;
}

FileHandle SimulatedDisk::open_for_writing(const Path& path) {
  begin("write", path);
  if (!in_folder(path)) throw FileError("write", path, ENOENT);
  if (find(path) < 0) change_folder({parent_of(path), "", normal(path), new_inode(false)});
  return open(path, inode_of("write", path));
}

FileHandle SimulatedDisk::open_for_reading(const Path& path) {
  begin("read", path);
  const int id = find(path);  // folders too, because they can be locked
  if (id < 0) throw FileError("read", path, ENOENT);
  return open(path, id);
}

bool SimulatedDisk::try_lock(const FileHandle& file) noexcept {
  if (!begin_quietly("lock", file.path)) return true;
  int& holder = inodes_.at(handles_.at(file.id).inode).locked_by;
  if (holder >= 0 && holder != file.id) return false;
  holder = file.id;
  return true;
}

NameState SimulatedDisk::name_state(const FileHandle& file) {
  begin("access", file.path);
  const int id = handles_.at(file.id).inode;
  if (find(file.path) != id) return NameState::moved;
  return count_names(id) == 1 && !inodes_.at(id).folder ? NameState::only : NameState::shared;
}

void SimulatedDisk::truncate(const FileHandle& file, std::uint64_t bytes) {
  begin("truncate", file.path);
  Open& open = handles_.at(file.id);
  inodes_.at(open.inode).content.resize(bytes);
  inodes_.at(open.inode).unsynced = true;
  open.position = bytes;
}

std::size_t SimulatedDisk::write(const FileHandle& file, std::span<const std::byte> bytes) {
  begin("write", file.path);
  if (write_limit_ > 0) bytes = bytes.first(std::min(bytes.size(), write_limit_));
  Open& open = handles_.at(file.id);
  Inode& inode = inodes_.at(open.inode);
  inode.content.resize(std::max(inode.content.size(), open.position + bytes.size()));
  inode.content.replace(open.position, bytes.size(), reinterpret_cast<const char*>(bytes.data()),
                        bytes.size());
  inode.unsynced = true;
  open.position += bytes.size();
  return bytes.size();
}

std::size_t SimulatedDisk::read(const FileHandle& file, std::span<std::byte> bytes) {
  begin("read", file.path);
  Open& open = handles_.at(file.id);
  const std::string& content = inodes_.at(open.inode).content;
  const std::size_t count = std::min(bytes.size(), content.size() - std::min(open.position, content.size()));
  std::copy_n(reinterpret_cast<const std::byte*>(content.data()) + open.position, count, bytes.data());
  open.position += count;
  return count;
}

void SimulatedDisk::sync(const FileHandle& file) {
  begin("sync", file.path);
  Inode& inode = inodes_.at(handles_.at(file.id).inode);
  inode.on_disk = inode.content;
  inode.unsynced = false;
}

void SimulatedDisk::close(const FileHandle& file) noexcept {
  begin_quietly("close", file.path);
  int& holder = inodes_.at(handles_.at(file.id).inode).locked_by;
  if (holder == file.id) holder = -1;
  handles_.erase(file.id);
}

void SimulatedDisk::rename(const Path& from, const Path& to) {
  begin("rename", to);
  const int id = find(from);
  if (id < 0) throw FileError("rename", to, ENOENT);
  if (parent_of(from) != parent_of(to))
    throw std::logic_error("the simulated disk renames within a folder only");
  const int replaced = find(to);
  if (replaced >= 0 && inodes_.at(replaced).folder) throw FileError("rename", to, EISDIR);
  if (replaced == id) return;  // as in POSIX: two names of one file both remain
  change_folder({parent_of(to), normal(from), normal(to), id});
}

void SimulatedDisk::exchange(const Path& a, const Path& b) {
  begin("exchange", b);
  if (find(a) < 0 || find(b) < 0) throw FileError("exchange", b, ENOENT);
  if (parent_of(a) != parent_of(b))
    throw std::logic_error("the simulated disk exchanges within a folder only");
  change_folder({parent_of(b), normal(a), normal(b), find(a), true});
}

void SimulatedDisk::link(const Path& existing, const Path& name) {
  begin("link", name);
  const int id = inode_of("link", existing);
  if (link_code_ != 0) throw FileError("link", name, link_code_);
  if (!in_folder(name)) throw FileError("link", name, ENOENT);
  if (find(name) >= 0) throw FileError("link", name, EEXIST);
  change_folder({parent_of(name), "", normal(name), id});
}

void SimulatedDisk::remove(const Path& path) {
  begin("remove", path);
  const int id = find(path);
  if (id < 0) throw FileError("remove", path, ENOENT);
  const auto inside = [&](const auto& name) { return is_below(name.first, normal(path)); };
  if (std::ranges::any_of(names_, inside)) throw FileError("remove", path, ENOTEMPTY);
  change_folder({parent_of(path), normal(path), "", id});
}

void SimulatedDisk::sync_folder(const Path& path) {
  begin("sync_folder", path);
  const int id = find(path);
  if (id < 0 || !inodes_.at(id).folder) throw FileError("sync_folder", path, ENOENT);
  std::erase_if(unsynced_changes_, [&](const FolderChange& change) {
    return change.folder == normal(path) && change.apply(names_on_disk_);
  });
}

void SimulatedDisk::make_folder(const Path& path) {
  begin("make_folder", path);
  if (!in_folder(path)) throw FileError("make_folder", path, ENOENT);
  if (find(path) >= 0) throw FileError("make_folder", path, EEXIST);
  change_folder({parent_of(path), "", normal(path), new_inode(true)});
}

// Removes files whose folder was lost.
void SimulatedDisk::drop_unreachable(Names& names) {
  auto lost = [&](const auto& name) { return !names.contains(parent_of(name.first)); };
  while (std::erase_if(names, lost) > 0) continue;
}

std::vector<SimulatedDisk::Names> SimulatedDisk::possible_names() const {
  constexpr std::size_t kMostChanges = 16;
  if (unsynced_changes_.size() > kMostChanges) throw std::logic_error("too many changes to try every subset");
  std::set<Names> possible;
  for (unsigned subset = 0; subset < 1u << unsynced_changes_.size(); ++subset) {
    std::vector<bool> happened(unsynced_changes_.size());
    for (std::size_t i = 0; i < happened.size(); ++i) happened[i] = subset >> i & 1;
    Names names = names_on_disk_;
    if (applied(names, happened)) possible.insert(std::move(names));
  }
  return {possible.begin(), possible.end()};
}

// Returns false if this combination of changes is impossible.
bool SimulatedDisk::applied(Names& names, const std::vector<bool>& happened) const {
  for (std::size_t i = 0; i < happened.size(); ++i)
    if (happened[i] && !unsynced_changes_[i].apply(names)) return false;
  drop_unreachable(names);
  return true;
}

// The states with no change, all changes, all but one, and the first n.
std::set<SimulatedDisk::Names> SimulatedDisk::extreme_names() const {
  const std::size_t count = unsynced_changes_.size();
  std::set<Names> possible;
  const auto add = [&](const std::vector<bool>& happened) {
    Names names = names_on_disk_;
    if (applied(names, happened)) possible.insert(std::move(names));
  };
  for (std::size_t i = 0; i <= count; ++i) {
    std::vector<bool> first(count, false), all_but(count, true);
    std::fill_n(first.begin(), i, true);
    if (i < count) all_but[i] = false;
    add(first);
    add(all_but);
  }
  return possible;
}

std::set<std::string> SimulatedDisk::possible_contents(const Inode& inode) {
  std::set<std::string> possible = {inode.on_disk};
  if (!inode.unsynced) return possible;
  const std::string& now = inode.content;
  for (std::size_t n = 0; n <= now.size(); ++n) {
    const std::string start = now.substr(0, n);
    const std::size_t rest = now.size() - n;
    possible.insert(start);
    possible.insert(start + std::string(rest, '\0'));
    possible.insert(start + std::string(rest, '#'));
    possible.insert(std::string(n, '\0') + now.substr(n));  // the later block was written first
    if (n < inode.on_disk.size()) possible.insert(start + inode.on_disk.substr(n));
  }
  return possible;
}

SimulatedDisk SimulatedDisk::rebooted(const Names& names, const std::map<int, std::string>& contents) const {
  SimulatedDisk disk;
  disk.names_ = disk.names_on_disk_ = names;
  disk.next_id_ = next_id_;
  disk.link_code_ = link_code_;
  for (const auto& [path, id] : names) {
    const auto content = contents.find(id);
    Inode& inode = disk.inodes_[id];
    inode.folder = inodes_.at(id).folder;
    inode.content = inode.on_disk = content == contents.end() ? "" : content->second;
  }
  return disk;
}

std::vector<SimulatedDisk> SimulatedDisk::after_power_loss() const {
  std::vector<SimulatedDisk> disks;
  for (const Names& names : possible_names()) {
    std::set<int> reachable;
    for (const auto& [path, id] : names) reachable.insert(id);
    std::vector<std::map<int, std::string>> combinations = {{}};
    for (const int id : reachable) {
      std::vector<std::map<int, std::string>> longer;
      for (const auto& combination : combinations)
        for (const std::string& content : possible_contents(inodes_.at(id))) {
          longer.push_back(combination);
          longer.back()[id] = content;
        }
      combinations = std::move(longer);
    }
    for (const auto& contents : combinations) disks.push_back(rebooted(names, contents));
  }
  return disks;
}

std::vector<SimulatedDisk> SimulatedDisk::some_after_power_loss(std::size_t most) const {
  std::vector<SimulatedDisk> disks;
  for (const Names& names : extreme_names())
    for (const double part : {0.0, 0.5, 1.0}) {  // fraction of the unsynced bytes on the disk
      std::map<int, std::string> contents;
      for (const auto& [path, id] : names) {
        const Inode& inode = inodes_.at(id);
        std::string& content = contents[id] = inode.on_disk;
        if (!inode.unsynced || part == 0) continue;
        const auto same = static_cast<std::size_t>(std::ranges::mismatch(inode.content, inode.on_disk).in1 -
                                                   inode.content.begin());
        const auto kept =
            same + static_cast<std::size_t>(part * static_cast<double>(inode.content.size() - same));
        content = inode.content.substr(0, kept) + std::string(inode.content.size() - kept, '\0');
      }
      disks.push_back(rebooted(names, contents));
    }
  // Choose evenly spaced states, because neighbouring ones are similar.
  std::vector<SimulatedDisk> chosen;
  const std::size_t count = std::min(most, disks.size());
  for (std::size_t i = 0; i < count; ++i) chosen.push_back(std::move(disks[i * disks.size() / count]));
  return chosen;
}

}  // namespace thimble
