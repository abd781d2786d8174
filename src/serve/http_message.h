// What an HTTP handler sees of a request, and how it answers.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace thimble {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method = {};  // "GET"
  std::string path = {};    // "/v1/models": as sent, without the query
  std::string query = {};
  HttpHeaders headers = {};  // names in lower case, values without blanks around them
  std::string body = {};
  std::string client = {};  // its address, without the port

  // nullptr: absent. Of several the first.
  const std::string* header(std::string_view lower_case_name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  HttpHeaders headers = {};
};

// "Not Found", ...
std::string_view reason_of(int status);

// The way back to one client. Exactly one answer is sent: whole, or as a stream.
//
// Nothing throws when the client is gone: what is sent then goes nowhere.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  // Sent with whatever the answer is: a handler that knows them early sets them here.
  virtual void add_header(std::string name, std::string value) = 0;
  virtual void send(const HttpResponse& response) = 0;

  virtual void begin_stream(int status, std::string_view content_type) = 0;
  virtual void write(std::string_view text) = 0;  // at once
  virtual void end_stream() = 0;                  // without it the client sees that something is missing

  // The client has closed its side: nobody waits for the answer.
  virtual bool gone() = 0;

  virtual bool started() const = 0;  // something was sent
  virtual int status() const = 0;    // that was sent
  virtual std::size_t bytes_sent() const = 0;
};

}  // namespace thimble
