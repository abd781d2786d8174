#include "report/dashboard.h"

#include <fstream>

#include "base/clock.h"
#include "report/run_files.h"
#include "serve/http_client.h"
#include "support/message_of.h"

namespace thimble {
namespace {

class DashboardTest : public testing::Test {
 protected:
  DashboardTest() : run_(write_run(folder_, {.steps = 3, .ended = false})), dashboard_(run_, 0) {}

  std::string ask(const std::string& line, const std::string& host = "127.0.0.1") {
    HttpClient client(dashboard_.port());
    client.send(line + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n");
    const HttpAnswer answer = client.read_answer();
    return std::to_string(answer.status) + " " + answer.head + answer.body;
  }

  TempFolder folder_;
  std::filesystem::path run_;
  Dashboard dashboard_;
};

TEST_F(DashboardTest, AcceptsOnlyLocalHostNames) {
  const std::string page = ask("GET /");
  EXPECT_TRUE(page.starts_with("200 "));
  EXPECT_NE(page.find("frame-ancestors 'none'"), std::string::npos);
  EXPECT_NE(page.find("data-live=\"yes\""), std::string::npos);
  EXPECT_TRUE(ask("GET /", "evil.example").starts_with("403 "));
  EXPECT_TRUE(dashboard_.address().starts_with("http://127.0.0.1:"));
}

TEST_F(DashboardTest, IsReadOnly) {
  for (const char* line : {"POST /", "PUT /events", "DELETE /"})
    EXPECT_TRUE(ask(line).starts_with("405 ")) << line;
  for (const char* path : {"/metrics.jsonl", "/../run/config.toml", "/config.toml", "/report.html"})
    EXPECT_FALSE(ask(std::string("GET ") + path).starts_with("200 ")) << path;
}

TEST_F(DashboardTest, StreamsUpdatesAndTheEnd) {
  HttpClient client(dashboard_.port());
  client.send("GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ASSERT_TRUE(client.wait_for("of 1,000</small>") || client.wait_for("steps</dt><dd>3"));
  std::ofstream(run_ / "metrics.jsonl", std::ios::app) << step_line(4, 1.25);
  ASSERT_TRUE(client.wait_for("steps</dt><dd>4"));
  EXPECT_EQ(client.buffer().find("\"ended\":true"), std::string::npos);
  dashboard_.end();
  EXPECT_TRUE(client.wait_for("\"ended\":true"));
}

// Each deadline of the server is longer: 10 s for a head, 2 s for the page.
TEST_F(DashboardTest, AClientThatStallsDoesNotDelayTheEnd) {
  HttpClient half(dashboard_.port());
  half.send("GET / HTTP/1.1\r\nHost:");
  ask("GET /");  // the other one is connected
  const double start = seconds_now();
  dashboard_.end();
  EXPECT_LT(seconds_now() - start, 8);
}

// The page is larger than the socket buffers, so the server's threads block in write for a while.
TEST(Dashboard, StalledClientsDoNotBlockOthers) {
  constexpr std::size_t kText = 2 << 20;  // the sample of each of four steps
  const TempFolder folder;
  const auto run = write_run(folder, {.sample = std::string(kText, 'x'), .ended = false});
  Dashboard dashboard(run, 0);
  std::vector<std::unique_ptr<HttpClient>> stalled;
  for (int i = 0; i < 3; ++i) {
    stalled.push_back(std::make_unique<HttpClient>(dashboard.port(), kClientSeconds, 1 << 16));
    stalled.back()->send("GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    ASSERT_TRUE(stalled.back()->wait_for("200 OK"));
  }
  HttpClient reader(dashboard.port());
  reader.send("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  const HttpAnswer page = reader.read_answer();
  EXPECT_TRUE(page.whole);
  EXPECT_GT(page.body.size(), 4 * kText) << "other clients are served meanwhile";
  dashboard.end();  // returns although the clients still read nothing
  EXPECT_FALSE(HttpClient(dashboard.port()).connected());
  for (auto& client : stalled) {
    while (client->receive(seconds_now() + 0.5)) continue;
    EXPECT_GT(client->buffer().size(), 0u);
    EXPECT_LT(client->buffer().size(), 4 * kText) << "disconnected in the middle, so the write did block";
  }
}

TEST(Dashboard, AnOccupiedPortIsAnError) {
  const TempFolder folder;
  const Dashboard first(folder / "a", 0);
  EXPECT_NE(message_of([&] {
              Dashboard(folder / "b", first.port());
            }).find("cannot start the dashboard: cannot listen on 127.0.0.1"),
            std::string::npos);
}

TEST(Dashboard, AMissingRunGivesAnEmptyPage) {
  const TempFolder folder;
  Dashboard dashboard(folder / "later", 0);
  HttpClient client(dashboard.port());
  client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(client.wait_for("No steps yet"));
}

}  // namespace
}  // namespace thimble
