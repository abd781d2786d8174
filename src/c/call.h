// What every function of the C interface shares: exceptions become statuses, handles are checked,
// bytes in memory become files.
#pragma once

#include <omp.h>
#include <thimble.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>

#include "base/error.h"
#include "base/files.h"

namespace thimble {

// A wrong argument of a call.
class Invalid : public Error {
 public:
  using Error::Error;
};

// A handle that another thread uses, or that others depend on.
class Busy : public Error {
 public:
  using Error::Error;
};

class TooSmall : public Error {
 public:
  using Error::Error;
};

class Diverged : public Error {
 public:
  Diverged()
      : Error("training diverged: the loss rose far above its lowest", Hint{"lower the learning rate"}) {}
};

inline void expect(bool ok, const char* message) {
  if (!ok) throw Invalid(message);
}

// The last error of this thread, as thimble_last_error() returns it.
const thimble_error& last_error();
// Stores the current exception as the last error and returns its status.
thimble_status status_of_exception() noexcept;

// Runs the body of a function of the interface.
template <class Body>
thimble_status guarded(const Body& body) noexcept {
  try {
    body();
    return THIMBLE_OK;
  } catch (...) {
    return status_of_exception();
  }
}

// A text of the caller, which must be UTF-8.
std::string_view text_of(const char* text, std::size_t size);

// Keeps a result until this thread's next result. Not with the handle: two threads that use one
// handle, each in its turn, would overwrite each other's.
thimble_text returned(std::string text);

// Loops outside of decoding share one OpenMP team, so only one thread may run them. A callback that
// calls back into such a function gets Busy instead of a deadlock.
//
// The end of the scope ends the threads of the team. A team belongs to the thread that created it,
// and with more threads in teams than CPUs, libgomp lets all of them sleep at every barrier: steps
// of training in another thread would take several times as long.
class Computing {
 public:
  Computing() { lock(); }
  ~Computing() {
    omp_pause_resource_all(omp_pause_soft);
    unlock();
  }
  Computing(const Computing&) = delete;
  Computing& operator=(const Computing&) = delete;

  void lock();  // throws Busy if this thread holds it already
  void unlock();
};

// Throws in a process that was forked from one that has used the interface: threads, locks and the
// memory of a GPU do not survive a fork. The first call decides whose process it is.
void check_process();

// The open handles of a type. A handle that has been closed is recognized unless its address is in
// use again.
template <class Handle>
class OpenHandles {
 public:
  explicit OpenHandles(const char* what) : what_(what) {}

  Handle* add(std::unique_ptr<Handle> handle) {
    const std::scoped_lock lock(mutex_);
    open_.insert(handle.get());
    return handle.release();
  }
  Handle& at(Handle* handle) {
    check_process();
    if (!handle) throw Invalid(std::string("the ") + what_ + " is NULL");
    const std::scoped_lock lock(mutex_);
    if (!open_.contains(handle))
      throw Invalid(std::string("the ") + what_ + " has been closed, or never was one");
    return *handle;
  }
  // The caller deletes it.
  std::unique_ptr<Handle> take(Handle* handle) {
    at(handle);
    const std::scoped_lock lock(mutex_);
    return std::unique_ptr<Handle>(open_.erase(handle) ? handle : nullptr);
  }

 private:
  const char* what_;
  std::mutex mutex_;
  std::unordered_set<const Handle*> open_;
};

// Bytes in memory that can be opened by a path ending in `name`, whose ending tells their format.
class MemoryFile {
 public:
  MemoryFile(std::string_view name, const void* bytes, std::size_t size);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  TemporaryFolder folder_;
  int descriptor_ = -1;
  std::string path_;
};

// The result of a command: Interrupted, Diverged or an Error with what it printed for exit codes
// other than 0.
void throw_if_failed(int exit_code, const std::string& printed);

}  // namespace thimble
