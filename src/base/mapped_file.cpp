#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>

#include "base/error.h"
#include "base/file_ops.h"

namespace thimble {

namespace {

// Mapped ranges, read by the handler. A place is free while `begin` is 0. The handler may run while
// another thread changes the table, so `begin` is written last and cleared first.
struct Range {
  std::atomic<std::uintptr_t> begin = 0, end = 0;
  std::atomic<std::atomic<bool>*> damaged = nullptr;
};
constexpr int kMostFiles = 1024;
std::array<Range, kMostFiles> ranges;
std::mutex ranges_mutex;  // for open and close, not for the handler
struct sigaction previous_action;

// Puts a page of zeros at the address. mmap is a plain system call, which a handler may make.
bool replace_page(std::uintptr_t address) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  void* at = reinterpret_cast<void*>(address / page * page);
  return mmap(at, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at;
}

void on_sigbus(int signal, siginfo_t* info, void* context) {
  const int saved = errno;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (Range& range : ranges) {
    const std::uintptr_t begin = range.begin.load();
    if (begin == 0 || address < begin || address >= range.end.load()) continue;
    if (!replace_page(address)) break;
    range.damaged.load()->store(true);
    errno = saved;
    return;
  }
  if ((previous_action.sa_flags & SA_SIGINFO) != 0 && previous_action.sa_sigaction)
    return previous_action.sa_sigaction(signal, info, context);
  if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN)
    return previous_action.sa_handler(signal);
  // The access is repeated on return and then ends the process.
  struct sigaction default_action {};
  default_action.sa_handler = SIG_DFL;
  sigaction(SIGBUS, &default_action, nullptr);
}

void install_handler() {
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_sigaction = on_sigbus;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, &previous_action) == 0;
  }();
  check(installed, "cannot install a handler for SIGBUS");
}

int add_range(std::span<const std::byte> bytes, std::atomic<bool>* damaged) {
  const std::lock_guard lock(ranges_mutex);
  install_handler();
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  for (int i = 0; i < kMostFiles; ++i) {
    Range& range = ranges[static_cast<std::size_t>(i)];
    if (range.begin.load() != 0) continue;
    range.end.store(begin + bytes.size());
    range.damaged.store(damaged);
    range.begin.store(begin);
    return i;
  }
  return -1;
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path) {
  std::shared_ptr<MappedFile> file(new MappedFile(path));
  file->descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file->descriptor_ < 0) throw FileError("open", path, errno);
  struct stat about {};
  if (fstat(file->descriptor_, &about) != 0) throw FileError("open", path, errno);
  check(S_ISREG(about.st_mode), "{} is not a regular file", path.string());
  const auto size = static_cast<std::size_t>(about.st_size);
  if (size == 0) return file;
  void* at = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file->descriptor_, 0);
  if (at == MAP_FAILED) throw FileError("map", path, errno);
  file->bytes_ = {static_cast<const std::byte*>(at), size};
  file->place_ = add_range(file->bytes_, &file->damaged_);
  check(file->place_ >= 0, "cannot map {}: {} files are mapped already", path.string(), kMostFiles);
  madvise(at, size, MADV_WILLNEED);  // reads ahead in the background; failure changes nothing
  return file;
}

MappedFile::~MappedFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (bytes_.empty()) return;
  if (place_ >= 0) {
    const std::lock_guard lock(ranges_mutex);
    ranges[static_cast<std::size_t>(place_)].begin.store(0);
  }
  munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::check_intact() const {
  struct stat about {};
  const bool complete = bytes_.empty() || (fstat(descriptor_, &about) == 0 &&
                                           std::cmp_greater_equal(about.st_size, bytes_.size()));
  check(complete && !damaged_.load(), Hint{"start again with the complete file"},
        "{} was truncated while it was in use: it had {} bytes when it was opened", path_.string(),
        bytes_.size());
}

}  // namespace thimble
