#include "c/call.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <new>

#include "base/signals.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "serve/fields.h"

namespace thimble {

namespace {

struct LastError {
  std::string message, hint, field;
  thimble_error shown = {THIMBLE_OK, "", "", ""};
};

LastError& mine() {
  thread_local LastError error;
  return error;
}

thimble_status fail_with(thimble_status status, std::string message, std::string hint = {},
                         std::string field = {}) {
  LastError& last = mine();
  last.message = std::move(message), last.hint = std::move(hint), last.field = std::move(field);
  last.shown = {status, last.message.c_str(), last.hint.c_str(), last.field.c_str()};
  return status;
}

thimble_status fail_with(thimble_status status, const Error& error) {
  return fail_with(status, error.what(), error.hint(), error.field());
}

}  // namespace

const thimble_error& last_error() {
  return mine().shown;
}

thimble_status status_of_exception() noexcept {
  try {
    try {
      throw;
    } catch (const Interrupted&) {
      return fail_with(THIMBLE_INTERRUPTED, "interrupted");
    } catch (const Busy& error) {
      return fail_with(THIMBLE_BUSY, error);
    } catch (const Diverged& error) {
      return fail_with(THIMBLE_DIVERGED, error);
    } catch (const TooSmall& error) {
      return fail_with(THIMBLE_TOO_SMALL, error);
    } catch (const Invalid& error) {
      return fail_with(THIMBLE_INVALID, error);
    } catch (const UsageError& error) {
      return fail_with(THIMBLE_INVALID, error);
    } catch (const ApiError& error) {
      return fail_with(THIMBLE_INVALID, error.what(), "", error.field());
    } catch (const Error& error) {
      return fail_with(THIMBLE_FAILED, error);
    } catch (const std::bad_alloc&) {
      return fail_with(THIMBLE_FAILED, "out of memory", "use a smaller model, batch or context");
    } catch (const std::exception& error) {
      return fail_with(THIMBLE_FAILED, error.what());
    } catch (...) {
      return fail_with(THIMBLE_FAILED, "an unknown exception");
    }
  } catch (...) {  // no memory for the message
    return THIMBLE_FAILED;
  }
}

std::string_view text_of(const char* text, std::size_t size) {
  expect(text != nullptr || size == 0, "the text is NULL");
  const std::string_view found(text ? text : "", size == THIMBLE_TEXT ? std::strlen(text) : size);
  expect(is_utf8(found), "the text is not UTF-8");
  return found;
}

thimble_text returned(std::string text) {
  thread_local std::string last;
  last = std::move(text);
  return {last.c_str(), last.size()};
}

namespace {

std::mutex computing;
thread_local bool computes = false;

}  // namespace

void Computing::lock() {
  if (computes)
    throw Busy("a callback may not compute while the call that it belongs to does",
               Hint{"return from the callback first"});
  computing.lock();
  computes = true;
}

void Computing::unlock() {
  computes = false;
  computing.unlock();
}

void check_process() {
  static std::atomic<pid_t> first = 0;
  const pid_t now = getpid();
  pid_t expected = 0;
  if (!first.compare_exchange_strong(expected, now) && expected != now)
    throw Invalid("this process was forked from one that uses thimble",
                  Hint{"start it with exec; in Python, with multiprocessing's method spawn"});
}

MemoryFile::MemoryFile(std::string_view name, const void* bytes, std::size_t size) {
  constexpr std::size_t kLongestName = 200;
  if (name.empty() || name.size() > kLongestName || name.find('/') != name.npos || name.starts_with('.') ||
      name.find('\0') != name.npos)
    throw Invalid("the name of a file in memory is 1 to 200 bytes without a slash, such as book.txt");
  expect(bytes != nullptr || size == 0, "the bytes are NULL");
  path_ = (folder_.path() / name).string();
  descriptor_ = memfd_create("thimble", MFD_CLOEXEC);
  if (descriptor_ < 0) throw FileError("create in memory", path_, errno);
  try {
    const char* at = static_cast<const char*>(bytes);
    for (std::size_t left = size; left > 0;) {
      constexpr std::size_t kPart = 1 << 30;  // write() takes less than 2 GiB
      const ssize_t written = ::write(descriptor_, at, std::min(left, kPart));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw FileError("write in memory", path_, errno);
      at += written, left -= static_cast<std::size_t>(written);
    }
    std::filesystem::create_symlink(fmt::format("/proc/self/fd/{}", descriptor_), path_);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

MemoryFile::~MemoryFile() {
  ::close(descriptor_);
}

void throw_if_failed(int exit_code, const std::string& printed) {
  constexpr int kExitDiverged = 3;
  if (exit_code == kExitDone) return;
  if (exit_code == kExitInterrupted) throw Interrupted();
  if (exit_code == kExitDiverged) throw Diverged();
  if (exit_code == kExitUsage) throw UsageError(printed);
  throw Error(printed.empty() ? "the command failed" : printed);
}

}  // namespace thimble
