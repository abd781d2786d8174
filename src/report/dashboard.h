// `thimble train --dashboard PORT`: the report of a run while it is trained, for browsers on this machine.
//
// Training knows nothing of it. The dashboard has threads of its own and reads the run's folder, so that no browser,
// slow or many, can make the loop wait. It answers two questions and takes no orders:
//
//   GET /         the page
//   GET /events   server-sent events: {"title", "sections": {id: html that changed}, "ended"}, at most one a second
#pragma once

#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

#include "report/report.h"

namespace thimble {

class HttpServer;
struct HttpRequest;
class HttpReply;

class Dashboard {
 public:
  // Listens on 127.0.0.1 from here on; a port that cannot be had is an error. 0: any that is free.
  Dashboard(std::filesystem::path run, int port);
  ~Dashboard();
  Dashboard(const Dashboard&) = delete;
  Dashboard& operator=(const Dashboard&) = delete;

  int port() const;
  std::string address() const;  // "http://127.0.0.1:6006"

  // Training is over: everybody who looks is told so, and the server closes.
  void end();

 private:
  struct View {  // what the browsers see
    std::string title;
    Sections sections = {};
    bool ended = false;
  };

  void answer(const HttpRequest& request, HttpReply& reply);
  void send_page(HttpReply& reply);
  void send_events(HttpReply& reply);
  std::shared_ptr<const View> view();  // drawn at most a second ago

  std::filesystem::path run_;
  std::mutex mutex_;
  RunFollower follower_;                // under the mutex, like all below
  std::shared_ptr<const View> latest_;  // may be null
  double drawn_at_ = 0;                 // seconds_now() when the latest was done
  bool ended_ = false;
  std::condition_variable change_;      // ended_ was set
  std::unique_ptr<HttpServer> server_;  // last: its threads use the rest
};

}  // namespace thimble
