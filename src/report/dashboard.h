// `thimble train --dashboard PORT`: the live report of a training run, for browsers on this
// machine.
//
// The dashboard reads the run's folder in its own threads and is independent of the training loop,
// so slow or numerous browsers cannot delay training. It is read-only and has two routes:
//
//   GET /         the page
//   GET /events   server-sent events, at most one per second:
//                 {"title", "sections": {id: html that changed}, "ended"}
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
  // Starts listening on 127.0.0.1. Port 0 selects any free port. Throws if the port is not
  // available.
  Dashboard(std::filesystem::path run, int port);
  ~Dashboard();
  Dashboard(const Dashboard&) = delete;
  Dashboard& operator=(const Dashboard&) = delete;

  int port() const;
  std::string address() const;  // "http://127.0.0.1:6006"

  // Tells all connected browsers that training has ended and closes the server.
  void end();

 private:
  struct View {  // the page as sent to browsers
    std::string title;
    Sections sections = {};
    bool ended = false;
  };

  void answer(const HttpRequest& request, HttpReply& reply);
  void send_page(HttpReply& reply);
  void send_events(HttpReply& reply);
  std::shared_ptr<const View> view();  // rendered at most one second ago

  std::filesystem::path run_;
  std::mutex mutex_;
  RunFollower follower_;                // this and the following members are guarded by mutex_
  std::shared_ptr<const View> latest_;  // may be null
  double drawn_at_ = 0;                 // seconds_now() when latest_ was completed
  bool ended_ = false;
  std::condition_variable change_;      // signals that ended_ was set
  std::unique_ptr<HttpServer> server_;  // last member, because its threads use the others
};

}  // namespace thimble
