// The MPI plugin: a Transport over MPI. It uses only non-blocking point-to-point messages;
// collectives are built in message_communicator.h.
#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "dist/plugins.h"

namespace thimble::mpi {

namespace {

void checked(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail(Hint{"another rank may have died: see its error message"}, "{}: {}", call,
       std::string(text, static_cast<std::size_t>(length)));
}

class MpiTransport final : public Transport {
 public:
  MpiTransport() {
    int provided = 0;
    // MPI_THREAD_SERIALIZED is not enough: the watchdog calls abort() while another thread may be
    // inside MPI.
    checked(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    checked(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
    checked(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
    MPI_Comm here = MPI_COMM_NULL;
    checked(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here),
            "MPI_Comm_split_type");
    checked(MPI_Comm_rank(here, &local_rank_), "MPI_Comm_rank");
    checked(MPI_Comm_size(here, &local_size_), "MPI_Comm_size");
    MPI_Comm_free(&here);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }

  Message send(int to, int tag, std::span<const std::byte> bytes) override {
    MPI_Request request = MPI_REQUEST_NULL;
    checked(
        MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, to, tag, MPI_COMM_WORLD, &request),
        "MPI_Isend");
    return keep({request, {}});
  }

  Message receive(int from, int tag, std::span<std::byte> bytes) override {
    MPI_Request request = MPI_REQUEST_NULL;
    checked(MPI_Irecv(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, from, tag, MPI_COMM_WORLD,
                      &request),
            "MPI_Irecv");
    return keep({request, static_cast<int>(bytes.size())});
  }

  bool done(Message message) override {
    const auto found = open_.find(message);
    check(found != open_.end(), "[mpi] message {} is not in progress", message);
    int flag = 0;
    MPI_Status status;
    checked(MPI_Test(&found->second.request, &flag, &status), "MPI_Test");
    if (flag == 0) return false;
    const std::optional<int> expected = found->second.bytes;
    open_.erase(found);
    if (expected) check_size(status, *expected);
    return true;
  }

  void close() override { checked(MPI_Finalize(), "MPI_Finalize"); }

  [[noreturn]] void abort(const std::string& message) noexcept override {
    std::fprintf(stderr, "%s\n", message.c_str());
    std::fflush(stderr);
    constexpr unsigned kSeconds = 5;
    alarm(kSeconds);  // ends this process if MPI_Abort hangs; the launcher ends the others
    MPI_Abort(MPI_COMM_WORLD, 1);
    _exit(1);
  }

 private:
  struct Open {
    MPI_Request request;
    std::optional<int> bytes;  // expected size of a received message
  };

  Message keep(const Open& open) {
    open_.emplace(++last_, open);
    return last_;
  }

  // MPI accepts a shorter message without an error.
  static void check_size(const MPI_Status& status, int expected) {
    int found = 0;
    checked(MPI_Get_count(&status, MPI_BYTE, &found), "MPI_Get_count");
    check(found == expected, Hint{"all ranks need the same binary, flags and files"},
          "[mpi] got a message of {} bytes from rank {}, expected {}", found, status.MPI_SOURCE, expected);
  }

  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  Message last_ = 0;
  std::unordered_map<Message, Open> open_;
};

// The library's name and version: the text before the first comma ("Open MPI v4.1.4").
std::string library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text, static_cast<std::size_t>(length));
  return all.substr(0, all.find(','));
}

}  // namespace

}  // namespace thimble::mpi

extern "C" __attribute__((visibility("default"))) const void* thimble_mpi_plugin() {
  using namespace thimble;
  static const MpiPlugin plugin{
      .abi = kDistAbi,
      .version = THIMBLE_VERSION,
      .library = mpi::library,
      .open = []() -> std::unique_ptr<Transport> { return std::make_unique<mpi::MpiTransport>(); },
  };
  return &plugin;
}
