// Tests the documented security properties: requests cannot access files, and keys are never
// disclosed.
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>

#include "serve/test_server.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

namespace fs = std::filesystem;

// Records accesses to a folder and its files.
class Watch {
 public:
  explicit Watch(const fs::path& folder) : notices_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    EXPECT_GE(inotify_add_watch(notices_, folder.c_str(), IN_ALL_EVENTS), 0);
  }
  ~Watch() { close(notices_); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  bool saw_access() const {
    std::array<char, 4096> events;
    return read(notices_, events.data(), events.size()) > 0;
  }

 private:
  int notices_;
};

std::string percent_encoded(std::string_view text) {
  std::string out;
  for (const char c : text) out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  return out;
}

// Requests with `path` in every position that could be interpreted as a file path.
std::vector<std::string> requests_for(const std::string& path) {
  std::string up = "/";
  for (int i = 0; i < 12; ++i) up += "../";
  const std::string relative = path.substr(1);
  std::vector<std::string> requests;
  for (const std::string& target :
       {path, "/" + path, up + relative, "/v1/models/" + up + relative, "/" + percent_encoded(path),
        "/%2e%2e/%2e%2e" + path, "/..%2f..%2f" + relative, "/%252e%252e" + path, "/?file=" + path,
        "/props?path=" + path, "/static" + path, "/health/.." + path, "file://" + path,
        "http://localhost/" + path, "/\\..\\.." + path, path + "%00.html"})
    requests.push_back(http_text("GET", target, ""));
  for (const char* method : {"PUT", "DELETE", "PATCH", "POST"})
    requests.push_back(http_text(method, path, "written"));
  for (const char* header : {"X-Original-URL", "X-Rewrite-URL", "X-Sendfile", "Referer", "Cookie", "Range"})
    requests.push_back(http_text("GET", "/props", "", fmt::format("{}: {}\r\n", header, path)));
  for (const char* key : {"model", "prompt", "user", "grammar", "lora", "file", "slot_save_path", "template"})
    requests.push_back(http_text("POST", "/v1/completions",
                                 Json::object().set(key, path).set("max_tokens", std::int64_t{2}).dump()));
  const Json image =
      Json::object().set("type", "image_url").set("image_url", Json::object().set("url", "file://" + path));
  const Json message = Json::object().set("role", "user").set("content", Json::array({image}));
  requests.push_back(http_text("POST", "/v1/chat/completions",
                               Json::object().set("messages", Json::array({message})).dump()));
  return requests;
}

TEST(RequestsAndFiles, PathsInRequestsDoNotReachTheFileSystem) {
  TestServer server;
  const TempFolder folder;
  constexpr std::string_view kContent = "fourscore and seven";
  const std::string path = folder.write("secret.txt", std::string(kContent)).string();
  const Watch watch(folder.path());
  for (const std::string& request : requests_for(path)) {
    const HttpAnswer answer = ask(server.port(), request);
    EXPECT_NE(answer.status, 0) << request;
    EXPECT_LT(answer.status, 500) << request << answer;
    EXPECT_EQ(answer.body.find(kContent), std::string::npos) << request;
  }
  EXPECT_FALSE(watch.saw_access());
  EXPECT_EQ(folder.read("secret.txt"), kContent);
  EXPECT_TRUE(watch.saw_access()) << "the watch must detect this read";
}

// The server's sources contain no function that could open a file.
TEST(RequestsAndFiles, TheServerSourcesUseNoFileFunctions) {
  constexpr std::array<std::string_view, 12> kOpens = {
      "<fstream>",    "<filesystem>",    "<fcntl.h>", "<cstdio>", "<stdio.h>", "<dirent.h>",
      "base/files.h", "base/file_ops.h", " open(",    "fopen(",   "openat(",   "popen("};
  int files = 0;
  for (const char* folder : {"src/http", "src/serve", "src/infer"})
    for (const auto& entry : fs::directory_iterator(source_folder() / folder)) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path());
      std::stringstream text;
      text << file.rdbuf();
      const std::string source = text.str();
      for (const std::string_view word : kOpens)
        EXPECT_EQ(source.find(word), std::string::npos) << entry.path() << ": " << word;
      ++files;
    }
  EXPECT_GT(files, 30);
}

TEST(Secrets, KeysAppearInNoAnswerAndNoLogLine) {
  ServerOptions options;
  options.service.api_keys = {"open-sesame"};
  options.service.log_prompts = true;
  TestServer server({.server = options});
  const std::string key = "Authorization: Bearer open-sesame\r\n";
  std::vector<HttpAnswer> answers;
  for (const char* path : {"/", "/health", "/v1/models", "/props", "/metrics", "/nothing",
                           "/?key=open-sesame", "/nothing?api_key=open-sesame"})
    answers.push_back(get(server.port(), path, key));
  for (const char* wrong : {"Authorization: Bearer open-sesam\r\n", "Authorization: Basic open-sesame\r\n",
                            "X-Api-Key: open-sesame2\r\n", "Cookie: key=open-sesame\r\n"})
    answers.push_back(get(server.port(), "/props", wrong));
  answers.push_back(post(server.port(), "/v1/completions", R"({"prompt":"a","max_tokens":2})", key));
  answers.push_back(post(server.port(), "/v1/completions", R"({"prompt":)", key));
  answers.push_back(post(server.port(), "/microgpt/v1/generate", "{}", key));
  // Rejected while incomplete; the part already read contains the key.
  answers.push_back(ask(server.port(), "GET /props HTTP/1.1\r\nHost: x\r\n" + key + "Bad Header\r\n\r\n"));
  answers.push_back(ask(server.port(), "GET /props HTTP/1.1\r\nHost: x\r\nX-Api-Key open-sesame\r\n\r\n"));
  for (const HttpAnswer& answer : answers) {
    EXPECT_NE(answer.status, 0);
    EXPECT_EQ((answer.head + answer.body).find("sesam"), std::string::npos) << answer;
  }
  for (const std::string& line : server.log_of(answers.size()))
    EXPECT_EQ(line.find("sesam"), std::string::npos) << line;
}

// Rejected after the head, without waiting for the announced body.
TEST(Strangers, AreRejectedBeforeSendingABody) {
  ServerOptions options;
  options.service.api_keys = {"k"};
  TestServer server({.server = options});
  for (const char* route : {"/v1/completions", "/v1/chat/completions", "/tokenize", "/health", "/nothing"})
    for (const char* framing : {"Content-Length: 4000000", "Transfer-Encoding: chunked"}) {
      const std::string head = fmt::format(
          "POST {} HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: wrong\r\n{}\r\n\r\n", route, framing);
      const HttpAnswer answer = ask(server.port(), head);  // the head only
      EXPECT_EQ(answer.status, 401) << head << answer;
      EXPECT_TRUE(answer.has_header("WWW-Authenticate: Bearer"));
      EXPECT_EQ(answer.json().at("error").at("type").as_string(), "authentication_error");
    }
  EXPECT_EQ(post(server.port(), "/tokenize", R"({"content":"hi"})", "X-Api-Key: k\r\n").status, 200);
  EXPECT_EQ(get(server.port(), "/health").status, 200);
}

}  // namespace
}  // namespace thimble
